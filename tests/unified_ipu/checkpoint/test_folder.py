from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unified_ipu.checkpoint import (
    LoaderEntry,
    Manifest,
    ProgramEntry,
    StoredTensor,
    TensorEntry,
    folder,
    has_checkpoints,
    open_checkpoint,
    publish,
    saved as module,
    write_checkpoint,
)
from unified_ipu.errors import CheckpointError


def manifest_of(step):
    return Manifest(
        step=step,
        written_by="1.2.3",
        plan={"seed": 0},
        programs={
            "model": ProgramEntry(
                adapter="numpy",
                update=step,
                updates_happened=step,
                tensors=[TensorEntry(name="w", shape=[3], dtype="float64", role="parameter")],
                scalars={},
                weights="weights.safetensors",
                slots="slots.safetensors",
            )
        },
        loaders={"train": LoaderEntry(state={"epoch": 0})},
    )


def saved(folder, step, keep=3):
    files = {
        "weights.safetensors": [StoredTensor("w", "float64", np.full(3, float(step)))],
        "slots.safetensors": [],
    }
    return publish(
        folder,
        step,
        lambda temporary: write_checkpoint(temporary, manifest_of(step), files),
        keep=keep,
    )


def content(folder):
    return sorted(path.name for path in folder.iterdir())


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


def test_the_latest_checkpoint_is_opened_by_the_folder_of_the_run_and_any_by_its_own(tmp_path):
    folder = tmp_path / "a" / "run"
    assert not has_checkpoints(folder)
    first, second = saved(folder, 5), saved(folder, 12)
    assert has_checkpoints(folder)
    assert content(folder) == ["latest", "step-00000005", "step-00000012"]
    assert content(second) == ["manifest.json", "slots.safetensors", "weights.safetensors"]
    assert open_checkpoint(folder).manifest.step == 12
    assert open_checkpoint(folder).folder == second
    one = open_checkpoint(first)
    assert one.manifest.step == 5
    assert one.tensors("weights.safetensors")["w"].array.tolist() == [5.0, 5.0, 5.0]


def test_the_last_written_ones_are_kept(tmp_path):
    for step in (10, 20, 30, 15):
        saved(tmp_path, step, keep=2)
    assert content(tmp_path) == ["latest", "step-00000015", "step-00000030"]
    assert open_checkpoint(tmp_path).manifest.step == 15


def test_a_step_that_is_saved_again_never_replaces_the_one_before_in_place(tmp_path):
    saved(tmp_path, 7)
    assert saved(tmp_path, 7).name == "step-00000007-2"
    assert open_checkpoint(tmp_path).folder.name == "step-00000007-2"
    assert saved(tmp_path, 7, keep=1).name == "step-00000007-3"
    assert content(tmp_path) == ["latest", "step-00000007-3"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path, error):
    saved(tmp_path, 1)
    before = content(tmp_path)

    def failing(temporary):
        (temporary / "weights.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        publish(tmp_path, 2, failing)
    assert content(tmp_path) == before
    assert open_checkpoint(tmp_path).manifest.step == 1


@pytest.mark.timeout(60)
def test_a_file_that_the_disk_does_not_take_leaves_the_old_checkpoint(tmp_path):
    # The limit on file sizes stands in for a full disk: write() fails half way, as there.
    script = """
import resource, sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_folder import saved
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
try:
    saved(Path(sys.argv[1]), 2)
except OSError as error:
    print(error.strerror)
"""
    saved(tmp_path, 1)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), here],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "File too large\n", done.stderr
    assert content(tmp_path) == ["latest", "step-00000001"]


class Killed(BaseException):
    """Stands for a process that ends there, without any cleaning up."""


class Countdown:
    """Kills before the call of that number; 0 never does."""

    def __init__(self, monkeypatch):
        self.left = 0
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for owner, name in (
            *[(folder, "write_text"), (folder, "sync_folder"), (Path, "rename"), (Path, "mkdir")],
            *[(module, "write_text"), (module, "sync_folder"), (module, "write_tensors")],
        ):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, original):
        def wrapper(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise Killed
            return original(*args, **kwargs)

        return wrapper


def step_after_kill(run, countdown, number, earlier):
    """Save, be killed before call ``number`` of the next saving, and give the step that is left."""
    countdown.left = 0
    for step in range(1, earlier + 1):
        saved(run, step, keep=2)
    countdown.left = number
    with pytest.raises(Killed):
        saved(run, earlier + 1, keep=2)
    countdown.left = 0
    if not has_checkpoints(run):
        return 0
    one = open_checkpoint(run)
    assert one.tensors("weights.safetensors")["w"].array[0] == float(one.manifest.step)
    return one.manifest.step


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_a_run_killed_before_any_step_of_writing_leaves_a_whole_checkpoint_or_the_one_before(
    tmp_path, monkeypatch, earlier
):
    countdown, left = Countdown(monkeypatch), []
    for number in range(1, 12):
        run = tmp_path / str(number)
        left.append(step_after_kill(run, countdown, number, earlier))
        saved(run, earlier + 2, keep=2)
        assert open_checkpoint(run).manifest.step == earlier + 2
    assert left == [earlier] * left.count(earlier) + [earlier + 1] * left.count(earlier + 1)
    assert min(left.count(earlier), left.count(earlier + 1)) > 0
    countdown.left = 12  # there is no twelfth step
    saved(tmp_path / "12", 1)


def test_what_a_killed_run_was_writing_is_not_looked_at_and_goes_with_the_next(tmp_path):
    saved(tmp_path, 1)
    left = tmp_path / ".writing-0123"
    left.mkdir()
    (left / "manifest.json").write_text("{")
    assert open_checkpoint(tmp_path).manifest.step == 1
    saved(tmp_path, 2)
    assert content(tmp_path) == ["latest", "step-00000001", "step-00000002"]


def test_a_run_killed_before_its_first_checkpoint_counted_has_either_none_or_that_one(tmp_path):
    step = saved(tmp_path, 1)
    (tmp_path / "latest").rename(tmp_path / "latest.new")
    assert has_checkpoints(tmp_path)
    assert open_checkpoint(tmp_path).manifest.step == 1
    step.rename(tmp_path / ".writing-0123")
    assert not has_checkpoints(tmp_path)
    assert "there is no checkpoint at" in refusal(tmp_path)


def test_a_run_killed_before_a_later_checkpoint_counted_goes_on_from_the_one_before(tmp_path):
    saved(tmp_path, 1)
    kept = (tmp_path / "latest").read_text()
    saved(tmp_path, 2)
    (tmp_path / "latest").rename(tmp_path / "latest.new")
    (tmp_path / "latest").write_text(kept)
    assert open_checkpoint(tmp_path).manifest.step == 1


def cut(step):
    file = step / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def unlink(step):
    (step / "slots.safetensors").unlink()


def change_step(step):
    file = step / "manifest.json"
    file.write_text(file.read_text().replace('"update": 2', '"update": 3'))


def cut_manifest(step):
    file = step / "manifest.json"
    file.write_text(file.read_text()[:-20])


def not_text(step):
    (step / "manifest.json").write_bytes(b"\xff\xfe\x00")


def no_manifest(step):
    (step / "manifest.json").unlink()


def foreign(step):
    (step / "manifest.json").write_text('{"epoch": 3}')


def too_new(step):
    file = step / "manifest.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, r"weights\.safetensors has \d+ bytes, its manifest says \d+"),
        (unlink, r"slots\.safetensors is missing"),
        (change_step, r"its content is not that of its sha256"),
        (cut_manifest, r"manifest\.json is damaged"),
        (not_text, r"manifest\.json is damaged: it is no text"),
        (no_manifest, r"manifest\.json cannot be read: No such file"),
        (foreign, r"is not ours: it has no format"),
        (too_new, r"has version 2 of the format, this unified_ipu reads up to 1"),
    ],
)
def test_a_damaged_foreign_or_too_new_checkpoint_is_refused_and_an_older_one_named(
    tmp_path, damage, said
):
    older, newest = saved(tmp_path, 1), saved(tmp_path, 2)
    damage(newest)
    message = refusal(tmp_path)
    assert re.search(said, message), message
    assert str(newest) in message
    assert f"whole ones that you can name instead: {older}" in message
    assert open_checkpoint(older).manifest.step == 1


def test_a_lost_or_senseless_latest_is_refused_and_what_is_there_named(tmp_path):
    step = saved(tmp_path, 1)
    latest = tmp_path / "latest"
    latest.write_text("../elsewhere\n")
    assert f"does not name a checkpoint; whole ones that you can name instead: {step}" in refusal(
        tmp_path
    )
    latest.write_text("step-00000009\n")
    assert (
        f"names step-00000009, which is missing; whole ones that you can name instead: {step}"
        in (refusal(tmp_path))
    )
    latest.unlink()
    assert f"latest is missing; whole ones that you can name instead: {step}" in refusal(tmp_path)


def test_no_other_whole_one_is_said_too(tmp_path):
    cut(saved(tmp_path, 1))
    assert "there is no other whole one" in refusal(tmp_path)


def test_an_empty_a_missing_and_a_foreign_folder_hold_no_checkpoint(tmp_path):
    assert "no such folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "model.bin").write_text("x")
    assert "it has neither latest nor manifest.json" in refusal(tmp_path)
    assert not has_checkpoints(tmp_path)


def test_a_manifest_with_a_right_hash_and_wrong_tables_is_refused(tmp_path):
    from unified_ipu.checkpoint.manifest import FORMAT, _hash

    step = saved(tmp_path, 1)
    file = step / "manifest.json"
    table = json.loads(file.read_text())
    rest = {name: table[name] for name in table if name not in {"format", "version", "sha256"}}
    rest["step"] = "one"
    file.write_text(json.dumps({"format": FORMAT, "version": 1, "sha256": _hash(rest), **rest}))
    assert "Expected `int`, got `str` - at `$.step`" in refusal(tmp_path)


def test_a_file_outside_of_the_checkpoint_is_never_read(tmp_path):
    step = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="has no file"):
        open_checkpoint(step).tensors("../step-00000001/weights.safetensors")

"""``plan explain --target ipu``: what each adapter would do, without running it."""

from __future__ import annotations

from unified_ipu.adapter import DeviceCall, Lowering, NativeCall
from unified_ipu.cli.lowered import describe
from unified_ipu.cli.main import main

FOUND = Lowering(
    "mine",
    "ipu",
    notes=("a note",),
    calls=(
        NativeCall("training", "options.deviceIterations", 5, "batch.updates_per_call"),
        NativeCall("training", "options.reduction", "=Reduction.Sum", "update.reduction"),
        NativeCall("inference", "options.cache", "folder", "compile.cache_dir"),
    ),
    device_call=DeviceCall(ipus=2, processes=4, host_rows=48, order="update, row", samples=192),
)


def test_calls_shapes_and_notes_are_written_with_the_fields_they_come_from():
    assert describe(FOUND).splitlines() == [
        "mine on ipu",
        "  IPUs              2 in each of 4 process(es)",
        "  host batch        48 rows a call and process: update, row",
        "  samples           192 a call over the world",
        "  training",
        "    options.deviceIterations(5)       # batch.updates_per_call",
        "    options.reduction(Reduction.Sum)  # update.reduction",
        "  inference",
        "    options.cache('folder')  # compile.cache_dir",
        "  notes",
        "    a note",
    ]


def test_a_long_call_moves_no_comment_but_its_own():
    long = "x" * 79
    found = Lowering(
        "mine",
        "ipu",
        calls=(
            NativeCall("training", "short", 1, "seed"),
            NativeCall("training", "long", f"={long}", "mesh.stage"),
        ),
    )
    assert describe(found).splitlines()[2:] == [
        "    short(1)  # seed",
        f"    long({long})  # mesh.stage",
    ]


def test_what_is_refused_is_written_with_its_reason():
    text = describe(Lowering("mine", "ipu", refused=(("batch.remainder", "set it to pad"),)))
    assert text == "mine on ipu\n  refused\n    batch.remainder: set it to pad\n"


def test_the_command_asks_every_adapter(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "explain", "--target", "ipu", "--set", "batch.remainder=pad"]
    assert main(words) == 0
    written = capsys.readouterr().out
    assert "torch on ipu" in written
    assert "options.deviceIterations(1)" in written
    assert "tensorflow on ipu" in written


def test_host_targets_have_no_such_part(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "explain"]) == 0
    assert "options." not in capsys.readouterr().out

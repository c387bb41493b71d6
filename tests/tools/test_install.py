"""Installing: what is refused and how it is said, what a stamp remembers, and what a person sees of pip."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from tools import install
from tools.install import InstallError, Progress, Stamps, Step

STEP = Step("libraries", ("lock.txt", "more.txt"), ("-r", "lock.txt"))


class Terminal(io.StringIO):
    """A stream that says that it is a terminal. It interprets no control sequence."""

    def isatty(self) -> bool:
        return True


def test_an_old_interpreter_is_told_so() -> None:
    with pytest.raises(InstallError, match=r"(?s)3\.11 or later.*/usr/bin/python3 is 3\.9\.2.*make run PYTHON="):
        install.check_interpreter((3, 9, 2), "/usr/bin/python3")
    install.check_interpreter((3, 11, 0), "/usr/bin/python3")


@pytest.mark.parametrize(("is_root", "command"), [(True, "    apt-get install"), (False, "    sudo apt-get install")])
def test_all_that_is_missing_is_mended_by_one_command(is_root: bool, command: str) -> None:
    with pytest.raises(InstallError, match=f"{command} -y libgomp1 redis-server\n"):
        install.refuse_missing(["libgomp1", "redis-server"], is_root)
    install.refuse_missing([], is_root)


def test_each_thing_that_the_system_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(install, "loads", lambda library: False)
    assert install.missing_packages("run") == ["python3-venv", "libgomp1"]
    for target in ("dev", "torch"):
        assert install.missing_packages(target) == ["python3-venv", "libgomp1", "redis-server", "chromium", "espeak-ng"]


def test_a_library_loads_or_does_not() -> None:
    assert install.loads("libc.so.6")
    assert not install.loads("libnone.so.9")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in STEP.determined_by:
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv").mkdir()
    return tmp_path


@pytest.mark.parametrize("changed", STEP.determined_by)
def test_a_step_is_done_until_one_of_its_inputs_changes(root: Path, changed: str) -> None:
    stamps = Stamps(root / ".venv")
    assert not stamps.done(root, STEP)
    stamps.record(root, STEP)
    assert stamps.done(root, STEP)
    (root / changed).write_text("other")
    assert not stamps.done(root, STEP)


def test_steps_are_remembered_apart(root: Path) -> None:
    stamps = Stamps(root / ".venv")
    stamps.record(root, STEP)
    other = STEP._replace(title="weights")
    assert not stamps.done(root, other)
    stamps.record(root, other)
    assert stamps.done(root, STEP)
    stamps.forget()
    assert not stamps.done(root, STEP)


def test_an_environment_that_was_moved_is_noticed(root: Path) -> None:
    Stamps(root / ".venv").record(root, STEP)
    assert not Stamps(root / ".venv").moved()
    (root / ".venv").rename(root / "elsewhere")
    assert Stamps(root / "elsewhere").moved()


PIP = """\
Collecting numpy==2.4.6 (from -r locks/run.txt (line 3))
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (62 kB)
Collecting xllamacpp==2026.10.11549 (from -r locks/run.txt (line 9))
Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)
Downloading https://registry.example/xllamacpp-2026.10.11549-cp310-abi3-linux_x86_64.whl (102 MB)
Downloading click-8.5.1-py3-none-any.whl (1.1 MB)
Downloading idna-3.20-py3-none-any.whl (71 kB)
Installing collected packages: numpy, xllamacpp
"""


def shown(out: io.StringIO) -> str:
    progress = Progress(out, steps=4)
    progress.begin("libraries")
    for line in PIP.splitlines():
        progress.pip_line(line.strip())
    progress.end("done in 9 s")
    return out.getvalue()


def test_a_log_gets_a_line_for_each_step_and_each_large_download() -> None:
    assert shown(io.StringIO()).splitlines() == [
        "1/4 libraries",
        "      downloading numpy (16.9 MB)",
        "      downloading xllamacpp (102 MB)",
        "      done in 9 s",
    ]


def test_a_terminal_sees_one_line_that_changes() -> None:
    first, *rest = re.split(r"\r\x1b\[K *", shown(Terminal()))
    assert first == "1/4 libraries\n"
    assert rest == [
        "1 packages, numpy",
        "2 packages, xllamacpp",
        "downloading numpy (16.9 MB)",
        "downloading xllamacpp (102 MB)",
        "downloading click (1.1 MB)",
        "unpacking",
        "done in 9 s\n",
    ]


def test_locks_hold_hashes_and_no_place() -> None:
    for lock in sorted((install.ROOT / "locks").glob("*.txt")):
        text = lock.read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9.-]+==\S+", text, re.MULTILINE)
        assert pins
        assert len(re.findall(r"^[a-z0-9.-]+==.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) == len(pins)
        assert not re.search(r"file:|https?:|--(extra-)?index|--find-links|^/", text, re.MULTILINE)


def test_the_service_and_the_tests_run_the_same_versions() -> None:
    run, dev = (set(re.findall(r"^\S+==\S+", lock_text(name), re.MULTILINE)) for name in ("run", "dev"))
    assert run < dev


def lock_text(name: str) -> str:
    return (install.ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")


def test_a_wrong_call_shows_the_right_one() -> None:
    out = io.StringIO()
    assert install.main(["everything"], out) == 2
    assert "run|dev|torch|missing" in out.getvalue()


def test_what_is_missing_is_printed_for_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "missing_packages", lambda target: ["libgomp1", target])
    out = io.StringIO()
    assert (install.main(["missing"], out), out.getvalue()) == (0, "libgomp1 dev\n")


def test_a_refusal_is_a_text_and_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "missing_packages", lambda target: ["libgomp1"])
    out = io.StringIO()
    assert install.main(["run"], out) == 1
    assert "apt-get install -y libgomp1" in out.getvalue()


class Recorder:
    """Stands for pip and the check of the weights: notes what would have been installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.made = 0
        self.installed: list[str] = []
        locks = ("build", "run", "dev", "models", "torch", "torch-cpu")
        for name in (*(f"locks/{lock}.txt" for lock in locks), "pyproject.toml"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(name)
        monkeypatch.setattr(install, "ROOT", root)
        monkeypatch.setattr(install, "is_usable", lambda venv: self.made > 0)
        monkeypatch.setattr(install, "make_environment", self._make)
        monkeypatch.setattr(install, "run_pip", lambda venv, arguments, progress: self.installed.append(arguments[-1]))
        monkeypatch.setattr(install, "check_weights", lambda venv, stamps: None)

    def _make(self, venv: Path) -> None:
        self.made += 1
        venv.mkdir(exist_ok=True)

    def install(self, target: str) -> str:
        out = io.StringIO()
        self.installed.clear()
        install.install(target, install.ROOT / ".venv", out)
        return out.getvalue()


def test_a_second_run_installs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch, tmp_path)
    assert recorder.install("run").splitlines()[0] == "1/6 virtual environment .venv"
    assert recorder.installed == ["locks/build.txt", "locks/run.txt", "locks/models.txt", "."]
    assert recorder.install("run").count("already there") == 4
    assert (recorder.installed, recorder.made) == ([], 1)


def test_the_tests_need_only_their_own_libraries_in_addition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch, tmp_path)
    recorder.install("run")
    recorder.install("dev")
    assert recorder.installed == ["locks/dev.txt"]


def test_the_torch_engine_comes_on_top_of_all_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch, tmp_path)
    recorder.install("dev")
    recorder.install("torch")
    assert recorder.installed == ["locks/torch.txt", "locks/torch-cpu.txt"]


def test_a_step_that_fails_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(venv: Path, arguments: tuple[str, ...], progress: Progress) -> None:
        raise InstallError("pip failed.")

    monkeypatch.setattr(install, "run_pip", fail)
    with pytest.raises(InstallError, match=r"(?s)pip failed\..*PIP_EXTRA_INDEX_URL"):
        install.run_step(Path(), install.TORCH, Progress(io.StringIO(), steps=1))


def test_the_torch_engine_and_the_tests_run_the_same_versions() -> None:
    torch, dev = (set(re.findall(r"^(\S+)==(\S+)", lock_text(name), re.MULTILINE)) for name in ("torch", "dev"))
    shared = {name for name, _ in torch} & {name for name, _ in dev}
    assert "numpy" in shared
    assert {pin for pin in torch if pin[0] in shared} == {pin for pin in dev if pin[0] in shared}


def test_an_environment_from_another_place_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch, tmp_path)
    recorder.install("run")
    (tmp_path / ".venv" / "installed.json").write_text(json.dumps({"home": "/elsewhere/.venv"}))
    recorder.install("run")
    assert recorder.made == 2


def test_a_folder_without_an_interpreter_is_no_environment(tmp_path: Path) -> None:
    assert not install.is_usable(tmp_path)


@pytest.mark.live
def test_the_environment_that_runs_this_test_is_usable() -> None:
    assert install.is_usable(Path(sys.prefix))


@pytest.mark.live
@pytest.mark.slow
def test_when_pip_fails_its_last_lines_are_shown() -> None:
    with pytest.raises(InstallError, match=r"(?s)pip failed:.*no-such-lock\.txt"):
        install.run_pip(Path(sys.prefix), ("-r", "no-such-lock.txt"), Progress(io.StringIO(), steps=1))

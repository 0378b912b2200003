"""What is installed is what is here: the built wheel holds the four packages whole, and nothing else."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.repository.tree import PACKAGES, files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("mailslot-*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


def test_the_wheel_holds_every_file_of_the_four_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    packed = {entry for entry in wheel.namelist() if ".dist-info/" not in entry}
    here = {
        str(path.relative_to(folder))
        for package, folder in PACKAGES.items()
        for path in files()
        if path.is_relative_to(folder / package)
    }
    assert packed == here


def test_the_wheel_offers_the_command_and_the_services_commands(wheel: zipfile.ZipFile) -> None:
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(entry).decode()
    assert "[console_scripts]\nmailslot = mailslot.cli:main" in text
    assert "[mailslot.commands]" in text


def test_the_wheel_carries_its_licence(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())

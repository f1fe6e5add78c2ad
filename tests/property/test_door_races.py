"""The door's races, each held still in a program without Python."""

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"


def test_the_races_of_the_door_are_decided(tmp_path):
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the package, and this test"
    program = tmp_path / "races"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", f"-I{NATIVE}", "-pthread"]
    source = HERE / "door_races.cpp"
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0 and "0 races" in run.stdout, run.stdout + run.stderr

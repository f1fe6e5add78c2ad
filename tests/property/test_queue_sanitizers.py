"""The native queue and the door's turns under the sanitizers, driven by threads without Python."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"


def run(folder, sanitizer, source, *arguments):
    """Build a program with a sanitizer and return what it printed; fail where that found anything."""
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the package, and this test"
    program = folder / "program"
    flags = ["-std=c++17", "-O1", "-g", f"-fsanitize={sanitizer}", f"-I{NATIVE}", "-pthread"]
    subprocess.run([compiler, *flags, str(HERE / source), "-o", str(program)], check=True)
    ran = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr
    return ran.stdout


SANITIZERS = pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@SANITIZERS
def test_the_queue_is_clean(tmp_path, sanitizer):
    assert "0 left" in run(tmp_path, sanitizer, "queue_stress.cpp", "6")


@pytest.mark.timeout(600)
@SANITIZERS
def test_a_message_has_one_answer_and_a_place_one_client(tmp_path, sanitizer):
    run(tmp_path, sanitizer, "door_turns.cpp")

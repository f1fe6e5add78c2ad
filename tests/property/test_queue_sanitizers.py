"""The native queue under the thread and the address sanitizer, driven by threads without Python."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_queue_is_clean(tmp_path, sanitizer):
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the package, and this test"
    program = tmp_path / "stress"
    flags = ["-std=c++17", "-O1", "-g", f"-fsanitize={sanitizer}", f"-I{NATIVE}", "-pthread"]
    subprocess.run(
        [compiler, *flags, str(HERE / "queue_stress.cpp"), "-o", str(program)], check=True
    )
    run = subprocess.run([program, "6"], capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 left" in run.stdout and "WARNING" not in run.stderr

"""The wheel, installed where nothing else is."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_runs_the_demo(tmp_path: Path) -> None:
    def run(*command: str | Path, **variables: str) -> str:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }
        done = subprocess.run(
            [str(part) for part in command],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1
    prompts = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("sag_pg/**/prompts/*.txt")}
    assert prompts
    assert prompts <= set(zipfile.ZipFile(wheel).namelist())
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[embedded,local]")
    sag_pg = python.with_name("sag-pg")
    # Short, for the path of a socket has a limit.
    data = {"SAG_PG_DATA_DIR": str(tmp_path / "d")}
    try:
        output = run(sag_pg, "demo", **data)
    finally:
        run(sag_pg, "stop", **data)
    assert "收购 Company B 的那家公司的 CTO 后来加入了哪个项目" in output
    assert "Lanternfish" in output

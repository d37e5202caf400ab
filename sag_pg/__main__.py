"""`python -m sag_pg` is `sag-pg`."""

from sag_pg.cli import main

main(prog_name="sag-pg")

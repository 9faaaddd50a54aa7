"""`python -m fedretina` is the command `fedretina`."""

from fedretina.cli import main

if __name__ == "__main__":
    main(prog_name="fedretina")

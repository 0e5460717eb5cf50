"""`python -m flatagents.run --machine NAME --input JSON --execution-id ID`: one machine in a process of its own."""

from holdfast.facades.flatagents.launching import run_process

if __name__ == "__main__":
    run_process()

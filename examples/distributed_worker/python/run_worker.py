"""Run one worker: it claims one job, processes it and exits."""

import argparse

from running import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    run("job_worker", parser.parse_args().data)

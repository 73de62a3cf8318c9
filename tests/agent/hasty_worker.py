"""The worker with another head start: 0 counts what the host needs for a launch as time of the kernel."""

import sys

from amk.agent.device import gpu_runner, worker

if __name__ == "__main__":
    gpu_runner.HEAD_START = int(sys.argv[1])
    worker.serve(gpu_runner.GpuRunner(), sys.argv[2:])

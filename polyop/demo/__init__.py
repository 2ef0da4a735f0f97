"""What `polyop demo` does: operators of real networks, compiled once each, run at several sizes, checked and timed."""

from polyop.demo.measure import Result, Run, results
from polyop.demo.subjects import SUBJECTS, Subject

__all__ = ["SUBJECTS", "Result", "Run", "Subject", "results"]

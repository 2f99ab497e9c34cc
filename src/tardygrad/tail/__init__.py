"""Tail indices: estimators, the gradient noise of a task, the updates of a run."""

from tardygrad.tail.estimate import Tail as Tail
from tardygrad.tail.estimate import estimate as estimate
from tardygrad.tail.probe import probe as probe

"""How heavy tails are: estimators of the tail index, the noise of a task's gradients, the updates of a run."""

from tardygrad.tail.estimate import Tail as Tail
from tardygrad.tail.estimate import estimate as estimate
from tardygrad.tail.probe import probe as probe

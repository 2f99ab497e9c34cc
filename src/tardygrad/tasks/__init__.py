"""What there is to learn: `Task` implementations."""

from tardygrad.tasks.cifar10 import cifar10 as cifar10
from tardygrad.tasks.clock import clock as clock
from tardygrad.tasks.data.sharding import Shards as Shards
from tardygrad.tasks.data.sharding import shard as shard
from tardygrad.tasks.digits import digits as digits
from tardygrad.tasks.fashion import fashion as fashion
from tardygrad.tasks.fashion import mnist as mnist
from tardygrad.tasks.glue import glue as glue
from tardygrad.tasks.lm import lm as lm
from tardygrad.tasks.logistic import logistic as logistic
from tardygrad.tasks.noise import Noise as Noise
from tardygrad.tasks.quadratic import quadratic as quadratic
from tardygrad.tasks.torch_task import TorchTask as TorchTask

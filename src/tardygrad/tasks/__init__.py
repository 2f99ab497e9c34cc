"""Tasks: data, network and loss, ready to train; `TorchTask` is for your own."""

from tardygrad.tasks.causal_lm import Lora as Lora
from tardygrad.tasks.causal_lm import causal_lm as causal_lm
from tardygrad.tasks.clock import clock as clock
from tardygrad.tasks.data.sharding import Shards as Shards
from tardygrad.tasks.data.sharding import shard as shard
from tardygrad.tasks.digits import digits as digits
from tardygrad.tasks.image_task import cifar10 as cifar10
from tardygrad.tasks.image_task import fashion as fashion
from tardygrad.tasks.image_task import mnist as mnist
from tardygrad.tasks.lm import lm as lm
from tardygrad.tasks.logistic import logistic as logistic
from tardygrad.tasks.noise import Noise as Noise
from tardygrad.tasks.quadratic import quadratic as quadratic
from tardygrad.tasks.torch_task import TorchTask as TorchTask

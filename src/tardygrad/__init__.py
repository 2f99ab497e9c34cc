"""Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients.

A method (`clip2`, `sgdclip`, `fadas`, `dn_dylu`) runs on a task (`tasks`, `TorchTask`) with a fleet (`Fleet`),
simulated (`simulate`) or on any pool (`train`); `drive` is the loop underneath, `Server` the algorithm.
"""

from tardygrad import tasks as tasks
from tardygrad.algorithm import Server as Server
from tardygrad.algorithm import Task as Task
from tardygrad.algorithm import work as work
from tardygrad.drive import Event as Event
from tardygrad.drive import drive as drive
from tardygrad.errors import Diverged as Diverged
from tardygrad.errors import Invalid as Invalid
from tardygrad.errors import RecordError as RecordError
from tardygrad.errors import Starved as Starved
from tardygrad.errors import TardygradError as TardygradError
from tardygrad.errors import WorkFailed as WorkFailed
from tardygrad.fleet import Exponential as Exponential
from tardygrad.fleet import Fleet as Fleet
from tardygrad.fleet import Group as Group
from tardygrad.fleet import Integer as Integer
from tardygrad.fleet import Link as Link
from tardygrad.fleet import LogNormal as LogNormal
from tardygrad.fleet import Pareto as Pareto
from tardygrad.fleet import Trace as Trace
from tardygrad.fleet import Uniform as Uniform
from tardygrad.messages import Advanced as Advanced
from tardygrad.messages import Buffers as Buffers
from tardygrad.messages import Job as Job
from tardygrad.messages import Joined as Joined
from tardygrad.messages import Lost as Lost
from tardygrad.messages import Refused as Refused
from tardygrad.messages import Taken as Taken
from tardygrad.messages import Update as Update
from tardygrad.method import Method as Method
from tardygrad.methods.clip2 import clip2 as clip2
from tardygrad.methods.dn_dylu import dn_dylu as dn_dylu
from tardygrad.methods.fadas import fadas as fadas
from tardygrad.methods.sgdclip import sgdclip as sgdclip
from tardygrad.pools.pool import Pool as Pool
from tardygrad.pools.scripted import ScriptedPool as ScriptedPool
from tardygrad.pools.sim import SimPool as SimPool
from tardygrad.pools.threads import ThreadPool as ThreadPool
from tardygrad.run import Run as Run
from tardygrad.run import Summary as Summary
from tardygrad.run import begin as begin
from tardygrad.run import replay as replay
from tardygrad.run import resume as resume
from tardygrad.run import simulate as simulate
from tardygrad.run import train as train
from tardygrad.schedules import Cosine as Cosine
from tardygrad.schedules import Power as Power
from tardygrad.schedules import Schedule as Schedule
from tardygrad.tasks.noise import Noise as Noise
from tardygrad.tasks.sharding import Shards as Shards
from tardygrad.tasks.sharding import shard as shard
from tardygrad.tasks.torch_task import TorchTask as TorchTask
from tardygrad.transforms import Step as Step
from tardygrad.transforms import Transform as Transform

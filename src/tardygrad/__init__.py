"""Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients.

A method (`clip2`, `sgdclip`, or one of their relatives) runs on a task (`tasks`, `TorchTask`) with a fleet (`Fleet`),
simulated (`simulate`) or on any pool (`train`); `drive` is the loop underneath, `Server` the algorithm.

`import tardygrad` is quick: it imports no torch. A name is imported from its module when it is first used.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the public names; these lines are read below, too
    from tardygrad import flower as flower
    from tardygrad import optim as optim
    from tardygrad import tasks as tasks
    from tardygrad.constructors import make as make
    from tardygrad.core.algorithm import Server as Server
    from tardygrad.core.algorithm import work as work
    from tardygrad.core.hierarchy import serve as serve
    from tardygrad.core.messages import Advanced as Advanced
    from tardygrad.core.messages import Asleep as Asleep
    from tardygrad.core.messages import Awake as Awake
    from tardygrad.core.messages import Job as Job
    from tardygrad.core.messages import Joined as Joined
    from tardygrad.core.messages import Lost as Lost
    from tardygrad.core.messages import ModuleBuffers as ModuleBuffers
    from tardygrad.core.messages import Refused as Refused
    from tardygrad.core.messages import Taken as Taken
    from tardygrad.core.messages import Update as Update
    from tardygrad.core.method import Method as Method
    from tardygrad.core.privacy import Privacy as Privacy
    from tardygrad.core.schedules import Cosine as Cosine
    from tardygrad.core.schedules import Power as Power
    from tardygrad.core.schedules import Schedule as Schedule
    from tardygrad.core.task import Task as Task
    from tardygrad.core.transforms import Step as Step
    from tardygrad.core.transforms import Transform as Transform
    from tardygrad.core.weights import Hinge as Hinge
    from tardygrad.core.weights import Polynomial as Polynomial
    from tardygrad.core.weights import Root as Root
    from tardygrad.core.weights import Threshold as Threshold
    from tardygrad.engines.contract import Pool as Pool
    from tardygrad.engines.ray.pool import RayPool as RayPool
    from tardygrad.engines.scripted import ScriptedPool as ScriptedPool
    from tardygrad.engines.sim.pool import SimPool as SimPool
    from tardygrad.engines.slowed import slowed as slowed
    from tardygrad.engines.threads import ThreadPool as ThreadPool
    from tardygrad.errors import Diverged as Diverged
    from tardygrad.errors import Interrupted as Interrupted
    from tardygrad.errors import Invalid as Invalid
    from tardygrad.errors import RecordError as RecordError
    from tardygrad.errors import Starved as Starved
    from tardygrad.errors import TardygradError as TardygradError
    from tardygrad.errors import TimeUp as TimeUp
    from tardygrad.errors import WorkFailed as WorkFailed
    from tardygrad.fleet import Exponential as Exponential
    from tardygrad.fleet import Fleet as Fleet
    from tardygrad.fleet import Group as Group
    from tardygrad.fleet import Integer as Integer
    from tardygrad.fleet import Link as Link
    from tardygrad.fleet import LogNormal as LogNormal
    from tardygrad.fleet import Pareto as Pareto
    from tardygrad.fleet import Runtime as Runtime
    from tardygrad.fleet import Trace as Trace
    from tardygrad.fleet import Uniform as Uniform
    from tardygrad.methods.clip2 import clip2 as clip2
    from tardygrad.methods.dcasgd import dcasgd as dcasgd
    from tardygrad.methods.diloco import diloco as diloco
    from tardygrad.methods.dn_dylu import dn_dylu as dn_dylu
    from tardygrad.methods.fadas import fadas as fadas
    from tardygrad.methods.fedadam import fedadam as fedadam
    from tardygrad.methods.fedadam import fedyogi as fedyogi
    from tardygrad.methods.fedasync import fedasync as fedasync
    from tardygrad.methods.fedavg import fedavg as fedavg
    from tardygrad.methods.fedavgm import fedavgm as fedavgm
    from tardygrad.methods.fedbuff import fedbuff as fedbuff
    from tardygrad.methods.halos import halos as halos
    from tardygrad.methods.sgdclip import sgdclip as sgdclip
    from tardygrad.methods.tailopt import tailopt as tailopt
    from tardygrad.results.comparison import Comparison as Comparison
    from tardygrad.results.statistics import Estimate as Estimate
    from tardygrad.results.statistics import confidence_interval as confidence_interval
    from tardygrad.results.statistics import holm as holm
    from tardygrad.results.statistics import paired_difference as paired_difference
    from tardygrad.runs.accountant import Accountant as Accountant
    from tardygrad.runs.loop import Event as Event
    from tardygrad.runs.loop import drive as drive
    from tardygrad.runs.loop import plan as plan
    from tardygrad.runs.progress import progress as progress
    from tardygrad.runs.replay import replay as replay
    from tardygrad.runs.resume import resume as resume
    from tardygrad.runs.run import Run as Run
    from tardygrad.runs.run import Summary as Summary
    from tardygrad.runs.run import begin as begin
    from tardygrad.runs.run import simulate as simulate
    from tardygrad.runs.run import train as train
    from tardygrad.runs.settings import Settings as Settings
    from tardygrad.spec.spec import load_spec as load_spec
    from tardygrad.sweeps.compare import compare as compare
    from tardygrad.sweeps.from_python import sweep as sweep
    from tardygrad.sweeps.store import PlannedRun as PlannedRun
    from tardygrad.sweeps.store import Store as Store
    from tardygrad.sweeps.store import StoredResult as StoredResult
    from tardygrad.sweeps.trials import SweepResult as SweepResult
    from tardygrad.tasks.data.sharding import Shards as Shards
    from tardygrad.tasks.data.sharding import shard as shard
    from tardygrad.tasks.noise import Noise as Noise
    from tardygrad.tasks.torch_task import TorchTask as TorchTask
    from tardygrad.tasks.trainer_task import LocalResult as LocalResult
    from tardygrad.tasks.trainer_task import SquaredMoves as SquaredMoves
    from tardygrad.tasks.trainer_task import TrainerTask as TrainerTask
else:
    _LINE = re.compile(r"^    from ([\w.]+) import (\w+) as \w+$", re.MULTILINE)
    _HOMES = {name: home for home, name in _LINE.findall(__spec__.loader.get_source(__name__))}
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> object:
        """Import a public name from its module, and keep it."""
        if name not in _HOMES:
            message = f"module 'tardygrad' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        home = _HOMES[name]
        found = import_module(f"tardygrad.{name}") if home == "tardygrad" else getattr(import_module(home), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """The public names, imported or not."""
        return sorted(_HOMES)

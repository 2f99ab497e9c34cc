"""Fleets: groups of clients, the time their jobs take, and what happens to them. All times are virtual seconds."""

from tardygrad.fleet.events import Available as Available
from tardygrad.fleet.events import Crash as Crash
from tardygrad.fleet.events import Diurnal as Diurnal
from tardygrad.fleet.events import Fault as Fault
from tardygrad.fleet.events import Slow as Slow
from tardygrad.fleet.events import SlowSpells as SlowSpells
from tardygrad.fleet.fleet import Fleet as Fleet
from tardygrad.fleet.fleet import Group as Group
from tardygrad.fleet.fleet import Link as Link
from tardygrad.fleet.fleet import Stragglers as Stragglers
from tardygrad.fleet.runtimes import Distribution as Distribution
from tardygrad.fleet.runtimes import Exponential as Exponential
from tardygrad.fleet.runtimes import Integer as Integer
from tardygrad.fleet.runtimes import LogNormal as LogNormal
from tardygrad.fleet.runtimes import Pareto as Pareto
from tardygrad.fleet.runtimes import Runtime as Runtime
from tardygrad.fleet.runtimes import Trace as Trace
from tardygrad.fleet.runtimes import Uniform as Uniform
from tardygrad.fleet.traces import AvailabilityFile as AvailabilityFile

"""Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients."""

from tardygrad.algorithm import Server as Server
from tardygrad.methods.clip2 import clip2 as clip2
from tardygrad.methods.sgdclip import sgdclip as sgdclip

"""Methods: short files, citation first; every method is a constructor of `tardygrad.Method`."""

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

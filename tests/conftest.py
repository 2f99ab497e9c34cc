"""One torch thread: small models are quicker so, and other work on the machine cannot stall them."""

import torch

torch.set_num_threads(1)

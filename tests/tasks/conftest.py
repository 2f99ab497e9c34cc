import pytest
import torch


@pytest.fixture(autouse=True)
def one_core():
    """Torch's own threads would only fight over the cores, and never change what these tests ask."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

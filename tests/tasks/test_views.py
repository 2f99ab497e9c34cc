"""What a module may carry besides plain parameters: ties, frozen parts, buffers, dropout; and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tardygrad.core.algorithm import Server, work
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip

from .test_torch_task import METHOD, data, job, make, naive


class Tied(nn.Module):
    """The decoder is the encoder."""

    def __init__(self):
        super().__init__()
        self.encode, self.middle, self.decode = nn.Linear(7, 5), nn.Linear(5, 7), nn.Linear(7, 5)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.decode(self.middle(self.encode(x)).tanh()))


def test_tied_weights_appear_once_and_stay_tied():
    module = Tied()
    task = make(module, batch_size=6)
    assert task.parameters == sum(p.numel() for p in module.parameters())
    one = job(task)
    after, _ = naive(module, task, one, 6)
    assert torch.equal(
        work(one, task, METHOD).delta, nn.utils.parameters_to_vector(after.parameters()).detach() - one.x
    )
    inside = task._local.views.module
    assert inside.encode.weight is inside.decode.weight


def test_frozen_parameters_stay_out_of_the_vector_and_as_they_are():
    module = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))
    module[0].requires_grad_(False)
    task = make(module, batch_size=6)
    assert task.parameters == 13 * 3 + 3
    one = job(task)
    after, _ = naive(module, task, one, 6)
    moved = nn.utils.parameters_to_vector(after[2].parameters()).detach() - one.x
    assert torch.equal(work(one, task, METHOD).delta, moved)
    assert torch.equal(task._local.views.module[0].weight, module[0].weight)


def normed():
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def test_batchnorms_statistics_go_through_a_real_round():
    module = normed()
    task = make(module, clients=2, batch_size=5)
    method = sgdclip(local_lr=0.1, local_clip=0.05, lr=1.0, buffer=2, local_epochs=1)
    server = Server(method, task.init(0), clients=2, seed=0, module_buffers=task.init_module_buffers())
    assert server.module_buffers.floats.tolist() == [0.0] * 5 + [1.0] * 5
    assert server.module_buffers.ints.tolist() == [0]
    jobs = server.dispatch()
    jobs[1] = jobs[1]._replace(epochs=None, steps=2)  # so that the two count differently
    for one in jobs:
        server.receive(work(one, task, method))
    alone = [naive(module, task, one, 5)[0][1] for one in jobs]
    mean = sum(torch.cat([norm.running_mean, norm.running_var]) for norm in alone) / 2
    assert torch.allclose(server.module_buffers.floats, mean, atol=1e-6)
    assert [norm.num_batches_tracked.item() for norm in alone] == [5, 2]
    assert server.module_buffers.ints.tolist() == [4]  # their mean, rounded


def test_a_clients_statistics_are_bit_identical_to_a_plain_loop_and_the_jobs_own_are_left_alone():
    module = normed()
    task = make(module, batch_size=6)
    one = job(task)
    update, (after, _) = work(one, task, METHOD), naive(module, task, one, 6)
    assert torch.equal(update.module_buffers.floats, torch.cat([after[1].running_mean, after[1].running_var]))
    assert update.module_buffers.ints.tolist() == [5]
    assert one.module_buffers.floats.tolist() == [0.0] * 5 + [1.0] * 5
    assert torch.equal(work(one, task, METHOD).module_buffers.floats, update.module_buffers.floats)


class Functional(nn.Module):
    """Dropout that no submodule tells of."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 3)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5, self.training))


def with_attention(dropout):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(1, 1, dropout=dropout, batch_first=True)
            self.head = nn.Linear(7, 3)

        def forward(self, x):
            return self.head(self.attention(x[..., None], x[..., None], x[..., None])[0][..., 0])

    return Attending()


DRAWING = {
    "dropout": lambda p: nn.Sequential(nn.Linear(7, 9), nn.Dropout(p), nn.Linear(9, 3)),
    "attention": with_attention,
    "transformer": lambda p: nn.Sequential(
        nn.Unflatten(1, (7, 1)), nn.TransformerEncoderLayer(1, 1, 4, dropout=p, batch_first=True), nn.Flatten()
    ),
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_task_knows_whether_its_module_draws(name):
    held = data(classes=3)
    assert make(DRAWING[name](0.3), held).draws_globally
    assert not make(DRAWING[name](0.0), held).draws_globally
    assert make(nn.Sequential(nn.Unflatten(1, (1, 7)), nn.LSTM(7, 3, 2, dropout=0.1)), held).draws_globally


@pytest.mark.parametrize(
    "module", [*(make_(0.3) for make_ in DRAWING.values()), Functional()], ids=[*DRAWING, "hidden"]
)
def test_dropout_is_a_function_of_the_job_and_leaves_the_global_generator_alone(module):
    task = make(module, batch_size=6)
    one = job(task, steps=6)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = work(one, task, METHOD).delta
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(work(one, task, METHOD).delta, first)
    assert torch.equal(work(one, make(module, batch_size=6), METHOD).delta, first)
    assert task.draws_globally
    same_rows = next(task.batches(one))
    g = task.gradient(one.x, same_rows, None)[1].clone()
    assert not torch.equal(task.gradient(one.x, same_rows._replace(key=1), None)[1], g)


def test_training_trains_and_evaluation_evaluates_whatever_the_modules_own_mode():
    module, held = DRAWING["dropout"](0.5).eval(), data()
    with torch.no_grad():
        loss = F.cross_entropy(module(held[0]), held[1]).item()
    task = make(module, held)
    x, batch = task.init(0), next(task.batches(job(task)))
    first = task.gradient(x, batch, None)[1].clone()
    assert not torch.equal(task.gradient(x, batch._replace(key=1), None)[1], first)
    assert task.evaluate(x, None)["loss"] == pytest.approx(loss)
    assert torch.equal(task.gradient(x, batch, None)[1], first)


def lookalike():
    module = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 3))
    module[1].weight = nn.Parameter(module[0].weight.data[:3])
    return module


def nested():
    """A trainable weight inside a frozen one, with a constant between their beginnings."""
    module, memory = nn.Sequential(nn.Linear(7, 3), nn.Linear(3, 3)), torch.randn(30)
    module[0].weight = nn.Parameter(memory[:21].view(3, 7), requires_grad=False)
    module[1].weight = nn.Parameter(memory[12:21].view(3, 3))
    module.register_buffer("constant", memory[2:4], persistent=False)
    return module


def untying():
    class Untying(Tied):
        def __deepcopy__(self, memo):
            copied = Tied()
            copied.decode.weight = nn.Parameter(copied.encode.weight.detach().clone())
            return copied

    return Untying()


def sparse():
    module = nn.Linear(3, 3)
    module.weight = nn.Parameter(torch.eye(3).to_sparse())
    return module


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.Tanh(), "a module must have parameters to train, got none in Tanh. Set requires_grad on some."),
        (nn.Linear(7, 3).double(), "must be float32 or bfloat16, got torch.float64 in `weight`. Use module.float()."),
        (nn.LazyLinear(3), "must have a shape, got lazy `weight` in LazyLinear. Run one forward pass first."),
        (nn.Linear(7, 3, device="meta"), "must be dense tensors with data, got `weight`, which is not."),
        (nested(), "`0.weight` and `1.weight` share memory, which copies of a module lose."),
        (lookalike(), "`1.weight` and `0.weight` share memory, which copies of a module lose. Tie weights as one"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_that_cannot_live_on_a_vector_are_refused(module, text):
    with pytest.raises(Invalid) as caught:
        make(module)
    assert text in str(caught.value)


@pytest.mark.parametrize("module", [untying, untying()], ids=["factory", "module"])
def test_a_copy_that_unties_is_refused(module):
    with pytest.raises(Invalid, match="a deep copy must keep tied weights tied, got Untying, which unties them"):
        make(module)


def test_buffers_can_be_refused_and_must_come_with_x():
    with pytest.raises(Invalid) as caught:
        make(normed(), module_buffers="refuse")
    text = "module_buffers='refuse' allows no buffers, got `1.running_mean` of BatchNorm1d. Use GroupNorm or LayerNorm."
    assert str(caught.value) == text
    assert make(nn.Linear(7, 3), module_buffers="refuse").init_module_buffers() is None
    task = make(normed())
    with pytest.raises(Invalid, match=r"this module has buffers, got none\. Start with module_buffers=task"):
        task.evaluate(task.init(0), None)
    double = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
    double[1].running_var = double[1].running_var.double()
    with pytest.raises(Invalid, match=r"must fit in float32 or int64, got torch.float64 in `1.running_var`"):
        make(double)

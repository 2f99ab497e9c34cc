"""Relatives on equal terms: as many client updates for each, on the same task, fleet and seed."""

import torch

import tardygrad as tg

torch.set_num_threads(1)  # so small a model is slower with more
task = tg.tasks.digits(clients=40, model="mlp", noise=tg.Noise("student", tail=1.5, scale=0.02))
fleet = tg.Fleet.paper(clients=40, stragglers="large")
work = {"local_lr": 0.3, "local_clip": 0.1, "local_steps": 5, "mode": "client"}
methods = (
    tg.clip2(**work, buffer=4, lr=3.0, clip=0.003, downplay=True),
    tg.fadas(**work, buffer=4, lr=0.003, tau_c=100),
    tg.dn_dylu(**work, lr=0.3, period=32),  # a round is one update; lr is the rate of `period` of them together
)
for method in methods:
    run = tg.simulate(method, task, fleet, rounds=1120 // method.buffer, seed=1, evaluate_every=0)
    scores = task.evaluate(run.x, None)
    summary = run.summary()
    print(f"{method}: {summary.updates} updates, {summary.local_steps} local steps, {summary.time:g} s,", end=" ")
    print(f"test accuracy {scores['accuracy']:.1%}")

# It prints:
#
# Clip² (client-centric, M=4, K=5, downplayed): 1120 updates, 5600 local steps, 77 s, test accuracy 96.1%
# FADAS (client-centric, M=4, K=5): 1120 updates, 5600 local steps, 77 s, test accuracy 95.0%
# DN+DyLU (client-centric, M=1, K=5): 1120 updates, 2683 local steps, 36.6 s, test accuracy 88.9%

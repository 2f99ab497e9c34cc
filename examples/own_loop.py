"""Your own loop: a server is the algorithm, a pool does the work, `drive` carries the messages between them."""

import tardygrad as tg

task = tg.tasks.quadratic(clients=40, heterogeneity=0.1, noise=tg.Noise("student", tail=1.5, scale=0.5))
method = tg.clip2(
    local_lr=0.1,
    local_clip=1.0,
    lr=tg.Power(5.0, -0.5),
    clip=0.1,
    buffer=4,
    local_steps=5,
    mode="client",
    compensate=True,
)
with tg.SimPool(task, method, tg.Fleet.paper(clients=40, stragglers="large")) as pool:  # or another engine
    server = tg.serve(method, task.init(seed=0), clients=40, seed=0, vectors=pool.vectors)
    for event in tg.drive(server, pool):  # without `rounds` it goes on for as long as you like
        if isinstance(event.happened, tg.Advanced) and event.happened.round % 50 == 0:
            loss = task.evaluate(server.x, None)["loss"]
            largest_delay = max(event.happened.delays)
            print(f"round {server.round}, {event.time:.0f} s: test loss {loss:.3f}, largest delay {largest_delay}")
            if loss < 0.2:
                break

# It prints:
#
# round 50, 15 s: test loss 0.421, largest delay 8
# round 100, 28 s: test loss 0.154, largest delay 5

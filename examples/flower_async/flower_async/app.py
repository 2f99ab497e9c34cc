"""A complete asynchronous Flower app: DC-Clip² on the digits, an update of the model for every two clients."""

import tardygrad as tg


def make(context):
    task = tg.tasks.digits(clients=context.run_config["clients"])
    method = tg.clip2(
        local_lr=0.3, local_clip=0.03, lr=1.0, clip=0.003, buffer=2, local_steps=5, mode="client", compensate=True
    )
    return method, task


client = tg.flower.client_app(make)
server = tg.flower.server_app(make)

"""The rows about several models behind one URL, beside llama-server's router mode."""

from __future__ import annotations

from bench import fleet_scenarios as of
from bench.figures import BEST, DEFAULT, ITSELF, Target
from bench.fleet_servers import FIRST, SECOND, Fleet
from bench.models import GEMMA3, SMOLLM2
from bench.row import Row
from bench.scenarios import COMPLETED

_TWO = {FIRST: SMOLLM2, SECOND: GEMMA3}
_THREE = _TWO | {"third": SMOLLM2}
_IDLE_MB = 80.0

FLEET_ROWS = (
    Row(
        "router-overhead",
        "what the router adds to a request",
        of.overhead(),
        slots=64,
        guess_s=40.0,
        family=None,
        extras=(DEFAULT,),
        fleet=Fleet({FIRST: SMOLLM2}, slots=64, context=256, num_threads=1),  # the other cores are the routers'
        targets=(
            Target(of.ADDED, 1.0, BEST),
            Target(of.ADDED, None, ITSELF, aim=0.3),
            Target(of.AT_ONCE, 1.0, BEST),
        ),
    ),
    *(
        Row(
            key,
            name,
            of.swapping(),
            slots=4,
            guess_s=35.0,
            family=None,
            extras=(DEFAULT,),
            fleet=Fleet(_TWO, room=1, top=top),
            targets=tuple(Target(of.first_token(model), 1.2, aim=aim) for model in (FIRST, SECOND)),
        )
        for key, name, top, aim in (
            ("router-swap", "swap of two models, room for one", {}, None),
            ("router-swap-spare", "swap of two models, room for one, a spare process", {"spares": 1}, 0.9),
        )
    ),
    Row(
        "router-alternating",
        f"{of.NUM_REQUESTS} requests to two models by turns, room for one",
        of.alternating(),
        slots=4,
        guess_s=25.0,
        family=None,
        extras=(DEFAULT,),
        fleet=Fleet(_TWO, room=1, limits={"max_wait_s": 2}),
        targets=(Target(COMPLETED, of.NUM_REQUESTS, ITSELF), Target(of.LONGEST, 10.0, ITSELF)),
    ),
    Row(
        "router-idle",
        "idle router, 3 models, none loaded",
        of.idle_router(),
        slots=4,
        guess_s=9.0,
        family=None,
        extras=(DEFAULT,),
        fleet=Fleet(_THREE, is_loaded=False),
        targets=(Target(of.MEMORY, _IDLE_MB, ITSELF, aim=60.0),),
    ),
    Row(
        "router-thousand",
        "router with 1,000 models, none loaded",
        of.long_catalogue(),
        slots=4,
        guess_s=15.0,
        family=None,
        extras=(DEFAULT,),
        fleet=Fleet({FIRST: SMOLLM2}, num_more=999, is_loaded=False),
        targets=(
            Target(of.MEMORY, _IDLE_MB, ITSELF),
            Target(of.LIST, 20.0, ITSELF),
            Target(of.RELOAD, 300.0, ITSELF),
        ),
    ),
)

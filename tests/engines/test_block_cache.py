"""The table of blocks: rows with the same prompt share its full blocks, and are tiles of rows that read it once."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.embedded.block_cache import BlockTable
from rewardsmith.engines.embedded.decode_state import DecodeState

ROWS, TOKENS = 12, 4
STEPS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 14), st.integers(0, ROWS - 1)), max_size=12)


@given(STEPS, st.integers(2, 5))
def test_rows_of_a_tile_share_their_first_blocks(steps: list[tuple[int, int, int]], width: int) -> None:
    state = DecodeState(ROWS, 8, torch.device("cpu"), blocks=8, tile_rows=width)
    table = BlockTable(state, 200, TOKENS, shares_prompts=True)
    prompts: dict[int, int] = {}  # of the rows in use
    for number, (count, length, leaving) in enumerate(steps):
        free = [row for row in range(ROWS) if row not in prompts][:count]
        if free:
            assert table.admit(free, length, spare=0)
            prompts |= dict.fromkeys(free, number)
        if leaving in prompts:
            table.release(leaving)
            del prompts[leaving]
        if prompts and len(prompts) < ROWS and leaving % 3 == 0:
            source, target = max(prompts), min(row for row in range(ROWS) if row not in prompts)
            table.move([source], [target], 0)
            prompts[target] = prompts.pop(source)
    table.upload()
    tiles = [[row for row in tile if row >= 0] for tile in state.members_Pn.tolist()]
    together = [row for tile in tiles for row in tile]
    assert len(together) == len(set(together))
    shared_S, blocks_SM = state.shared_S.numpy(), state.table_SM.numpy()
    for tile in (tile for tile in tiles if tile):
        (shared,) = set(shared_S[tile].tolist())
        assert len(tile) > 1
        assert shared == steps[prompts[tile[0]]][1] // TOKENS > 0
        assert len({prompts[row] for row in tile}) == len(np.unique(blocks_SM[tile, :shared], axis=0)) == 1
    assert set(np.flatnonzero(shared_S).tolist()) == set(together)
    # A row is left out only where its prompt has no full block, or the tiles of its prompt are full.
    for number in set(prompts.values()):
        mine = [row for row in prompts if prompts[row] == number]
        alone = [row for row in mine if row not in together]
        assert len(alone) <= (1 if steps[number][1] >= TOKENS else len(mine))

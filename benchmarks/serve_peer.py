"""The peer of `serve.py`: a reward server as one writes it with FastAPI, in the form of OpenRLHF's reference server.

    python benchmarks/serve_peer.py PORT        # needs fastapi and uvicorn

It reads query, prompts and labels, compares the end of each answer with its label in its own process, and returns the
rewards. It has no limits, no failures and no counts.
"""

import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

app = FastAPI()


@app.post("/get_reward")
async def get_reward(request: Request) -> JSONResponse:
    """Return 1 for each query that ends with its label."""
    data = await request.json()
    pairs = zip(data["query"], data["prompts"], data["labels"], strict=True)
    rewards = [float(query[len(prompt) :].strip() == label) for query, prompt, label in pairs]
    return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": {"dummy_scores": rewards}})


@app.get("/ready")
async def ready() -> dict[str, bool]:
    """Return that it is up."""
    return {"ready": True}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)

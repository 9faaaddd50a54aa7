"""Runs the job in this folder in FLARE's simulator: docs/recipes.md. `fedretina job write` writes this file.

python job.py                              runs it; `fedretina show` then prints its table
python job.py --export --export-dir OUT    writes the job that FLARE is given into OUT

For another place to run, put PocEnv(num_clients=len(sites), clients=sites) or a ProdEnv where SimEnv(...) stands.
"""

from pathlib import Path

from nvflare.recipe import SimEnv

from fedretina.recipes import JobRecipe

if __name__ == "__main__":
    recipe = JobRecipe(Path(__file__).parent)
    sites = list(recipe.sites)
    env = SimEnv(clients=sites, num_threads=min(2, len(sites)), workspace_root="simulator_workspace")
    run = recipe.execute(env)
    print(f"FLARE's files: {run.get_result()}")

"""Run in a process of its own, which knows nothing of geowidth: load sliced models with transformers.

usage: python sliced_reader.py JOB.json ANSWERS.json; the job names folders, token ids and the kinds that are encoders.
"""

import json
import sys
import warnings
from pathlib import Path

import torch

warnings.simplefilter("error")
torch.set_num_threads(1)


def main(job):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    answers, ids = {}, torch.tensor(job["ids"])
    for name, folder in job["folders"].items():
        encoder = name.partition("-")[0] in job["encoders"]
        auto = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
        model = auto.from_pretrained(folder, trust_remote_code=True).eval()
        made = None
        with torch.no_grad():
            states = model.base_model(ids)[0]
            if not encoder:
                made = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False).shape[1] - ids.shape[1]
        answers[name] = {"states": states.tolist(), "generated": made}
    return answers


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))

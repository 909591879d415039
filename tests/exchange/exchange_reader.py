"""Run in a process of its own, which knows nothing of geowidth: load exports with transformers and say what they do.

usage: python exchange_reader.py JOB.json; the job names folders, token ids and a file for the answers.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch

warnings.simplefilter("error")
torch.set_num_threads(1)


def main(job):
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    transformers.utils.logging.set_verbosity_error()
    ids = torch.tensor([job["ids"]])
    answers = {"transformers": transformers.__version__}
    for name, folder in job["folders"].items():
        trusted = {"trust_remote_code": name != "hf-padded"}
        model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **trusted)
        answer = {"class": type(model).__name__, "loading": {key: sorted(map(str, v)) for key, v in found.items() if v}}
        with torch.no_grad():
            answer["logits"] = model(ids).logits[0].tolist()
            answer["generated"] = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[
                0, -4:
            ].tolist()
            compiled = torch.compile(model, backend="eager")
            answer["compiled"] = (compiled(ids).logits - model(ids).logits).abs().max().item()
            half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **trusted)
            answer["bfloat16"] = half(ids).logits.float()[0].tolist()
        answer["parameters"] = sum(p.numel() for p in model.parameters())
        model.train()
        loss = model(ids, labels=ids).loss
        loss.backward()
        answer["gradients"] = all(torch.isfinite(p.grad).all().item() for p in model.parameters() if p.numel())
        with tempfile.TemporaryDirectory() as again:
            model.save_pretrained(again)
            second = AutoModelForCausalLM.from_pretrained(again, **trusted)
            with torch.no_grad():
                answer["saved again"] = torch.equal(second.eval()(ids).logits, model.eval()(ids).logits)
        tokenizer = AutoTokenizer.from_pretrained(folder, **trusted)
        answer["tokens"] = tokenizer(job["text"]).input_ids
        answer["text"] = tokenizer.decode(answer["tokens"])
        answers[name] = answer
    for name, folder in job.get("untrained", {}).items():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        down = [parameter.shape[1] for key, parameter in model.named_parameters() if "mlp.down_proj" in key]
        with torch.no_grad():
            answers[name] = {"widths": down, "finite": torch.isfinite(model(ids % 97).logits).all().item()}
    Path(job["out"]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

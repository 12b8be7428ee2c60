import torch, json
torch.set_num_threads(1)
from mee_utils.study.profiles import load_profile
from mee_utils.study import train_models as tm, inputs
from mee_utils.models.mini import new_network
from safetensors.torch import load_file
p = load_profile("real", "/work/shared/data")
m=json.load(open('/tmp/realstate/real/base/manifest.json'))
maker = tm.new_maker(p)
f = tm.work_folder(p, "base", p.training.seed, maker.tasks); print(f)
f.mkdir(parents=True, exist_ok=True)
curve={k:m[k] for k in("steps","minutes","loss","layer_cross_entropy")}
none=dict(steps=0,minutes=0.0,loss=[],layer_cross_entropy=[])
full=p.training.shape.model_dump(); few=full|dict(num_layers=4,num_decoder_layers=4)
small=new_network(maker.tokenizer,**few).state_dict()
net=new_network(maker.tokenizer,**full)
w={k:v.float() for k,v in load_file('/tmp/realstate/real/base/model.safetensors').items()}
for k in ("encoder.embed_tokens.weight","decoder.embed_tokens.weight","lm_head.weight"): w[k]=w["shared.weight"].clone()
print(net.load_state_dict(w))
for n,(ww,c) in enumerate([(small,curve),(small,none),(small,none),(w,none)],1): torch.save(dict(weights=ww,curve=c),f/f"stage-{n}.pt")

#!/bin/bash
# Runs the workflow on a Slurm cluster of one node, started here from Debian's packages, in a copy of this
# repository, and compares what the jobs made with what is stored: tests/slurm.sh [target ...]. As root, in a
# container or virtual machine that may be changed. Takes `make` an environment of its own.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
targets=("${@:-notebook_08_results}")
if ! command -v slurmctld > /dev/null || ! command -v munged > /dev/null; then
  apt-get update -q
  apt-get install -qy slurm-wlm munge
fi

mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd /etc/slurm
chown munge: /run/munge
[ -s /etc/munge/munge.key ] || { head -c 1024 /dev/urandom > /etc/munge/munge.key; chown munge: /etc/munge/munge.key; }
chmod 400 /etc/munge/munge.key
cat > /etc/slurm/slurm.conf << END
ClusterName=one
SlurmctldHost=$(hostname -s)
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=600
NodeName=$(hostname -s) CPUs=$(nproc) RealMemory=$(free -m | awk '/Mem:/ {print int($2 * 0.9)}') State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
pkill -x slurmd || true; pkill -x slurmctld || true; pgrep -x munged > /dev/null || runuser -u munge -- munged
slurmctld
slurmd
sleep 3
sinfo

copy=$(mktemp -d)/companion
git clone -q "$here" "$copy"  # an error here ends the script: what follows belongs in the copy
cd "$copy"
make -s setup
.venv/bin/pip install -q 'snakemake-executor-plugin-slurm'
mkdir -p build
.venv/bin/snakemake --snakefile notebooks/Snakefile --directory build --executor slurm --jobs "$(nproc)" \
  --slurm-status-command squeue --default-resources slurm_partition=main runtime=120 mem_mb=4000 cpus_per_task=1 \
  --config profile=small --forcerun "${targets[@]}" -- "${targets[@]}"
if git status --short -- figures notebooks | grep -v manifest.json; then
  echo "the jobs made other bytes"
  exit 1
fi
echo "the same bytes as stored: ${targets[*]}"

#!/usr/bin/env bash
# Claims in, snapshots out; a claim is deleted, its snapshots are kept until their time is up.
. "$(dirname "$0")/../lib.sh"

clock() { post /clock "$1"; }
snapshots() { kubectl get volumesnapshots -o jsonpath='{.items[*].metadata.name}'; }
status() { kubectl get snapshotschedule hourly -o jsonpath="{.status.$1}"; }
owners() { kubectl get volumesnapshots -o jsonpath='{range .items[*]}{.metadata.ownerReferences[*].kind}{"\n"}{end}' | sort -u; }
tombstones() { grep -c 'POST /tombstone' "$work/hook.log" || true; }
asked() { if [ "$(tombstones)" -gt "$1" ]; then echo yes; else echo no; fi; }

start_spaces
start_hook
clock 0
say "definitions, the controller, three claims, one schedule"
apply crds.yaml
kubectl wait --for condition=Established crd/snapshotschedules.backup.example.com crd/volumesnapshots.snapshot.storage.k8s.io
apply controller.yaml
apply claims.yaml
apply schedule.yaml
until_is "the controller is ready" True kubectl get mapcontroller pvc-backup -o 'jsonpath={.status.conditions[0].status}'

say "at once: a snapshot of each claim that the schedule selects"
until_is "snapshots" "data-0-0 data-1-0" snapshots
until_is "claims in the status" 2 status inputs.persistentvolumeclaims.total
until_is "snapshots in the status" 2 status outputs.volumesnapshots.total
until_is "owners of snapshots" SnapshotSchedule owners
until_is "the tombstone hook was asked" no asked 0

say "an hour later, and two"
clock 3600
until_is "snapshots" "data-0-0 data-0-3600 data-1-0 data-1-3600" snapshots
clock 7200
until_is "snapshots" "data-0-0 data-0-3600 data-0-7200 data-1-0 data-1-3600 data-1-7200" snapshots

say "three hours and a second later: the first ones are too old"
clock 10801
until_is "snapshots" "data-0-10801 data-0-3600 data-0-7200 data-1-10801 data-1-3600 data-1-7200" snapshots

say "a storage driver reports one as ready"
kubectl patch volumesnapshot data-0-3600 --subresource=status --type merge -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
until_is "snapshots in the status" 6 status outputs.volumesnapshots.total
until_is "ready in the status" 1 status outputs.volumesnapshots.ready

say "data-0 is deleted: the tombstone hook keeps its snapshots"
kubectl delete pvc data-0
until_is "the tombstone hook was asked" yes asked 0
until_is "claims in the status" 1 status inputs.persistentvolumeclaims.total
until_is "snapshots without their claim" 3 status outputs.volumesnapshots.detached
until_is "snapshots in the status" 6 status outputs.volumesnapshots.total
until_is "snapshots" "data-0-10801 data-0-3600 data-0-7200 data-1-10801 data-1-3600 data-1-7200" snapshots

say "until their time is up, one by one"
clock 14402
until_is "snapshots" "data-0-10801 data-0-7200 data-1-10801 data-1-14402 data-1-7200" snapshots
until_is "snapshots without their claim" 2 status outputs.volumesnapshots.detached
clock 30000
until_is "snapshots" "data-1-30000" snapshots
until_is "snapshots without their claim" "" status outputs.volumesnapshots.detached
until_is "snapshots in the status" 1 status outputs.volumesnapshots.total
kubectl get snapshotschedules

say "the schedule is deleted: its snapshots go, the claims stay"
kubectl delete snapshotschedule hourly
until_is "snapshots" "" snapshots
until_is "claims" "data-1 scratch" kubectl get pvc -o 'jsonpath={.items[*].metadata.name}'
finish

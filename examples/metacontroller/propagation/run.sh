#!/usr/bin/env bash
# Every ConfigMap with a label gets a copy that follows it.
. "$(dirname "$0")/../lib.sh"

value() { kubectl get configmap "$1" -o "jsonpath={.data.$2}"; }

start_spaces
start_hook
say "the controller, two inputs and a parent"
apply controller.yaml
kubectl create configmap a --from-literal=word=hello
kubectl create configmap b --from-literal=word=world
kubectl label configmap a b shout=please
until_is "the controller is ready" True kubectl get mapcontroller shout -o 'jsonpath={.status.conditions[0].status}'
kubectl apply -f - <<YAML
apiVersion: example.com/v1
kind: Shout
metadata: {name: loud, namespace: default}
spec: {suffix: -loud, selector: {matchLabels: {shout: please}}}
YAML
until_is "the copy of a" hello value a-loud WORD
until_is "the copy of b" world value b-loud WORD
until_is "outputs in the status" 2 kubectl get shout loud -o 'jsonpath={.status.outputs.configmaps.total}'

say "an edit travels; drift is put right; foreign keys stay"
kubectl patch configmap a --type merge -p '{"data":{"word":"bonjour"}}'
until_is "the copy of a" bonjour value a-loud WORD
kubectl patch configmap a-loud --type merge -p '{"data":{"WORD":"drift","theirs":"x"}}'
until_is "the copy of a" bonjour value a-loud WORD
until_is "somebody else's key" x value a-loud theirs

say "an input that loses its label, or goes, takes its copy with it"
kubectl label configmap b shout-
until_is "copies" "a-loud" kubectl get configmaps -l made-by=loud -o 'jsonpath={.items[*].metadata.name}'
kubectl delete configmap a
until_is "copies" "" kubectl get configmaps -l made-by=loud -o 'jsonpath={.items[*].metadata.name}'
finish

#!/usr/bin/env bash
# An annotation on a Deployment brings it a label and a ConfigMap; without the annotation, both go.
. "$(dirname "$0")/../lib.sh"

contact() { kubectl get configmap web-contact -o "jsonpath={.data.$1}"; }

start_spaces
start_hook
say "the controller and a Deployment"
apply controller.yaml
kubectl create deployment web --image=nginx:1 --replicas=2
say "an annotation opts in"
kubectl annotate deployment web on-call=555-0100
until_is "the attachment" 555-0100 contact on-call
until_is "the label" true kubectl get deployment web -o 'jsonpath={.metadata.labels.has-contact}'
say "it follows"
kubectl scale deployment web --replicas=3
until_is "the attachment" 3 contact replicas
say "without the annotation, everything is taken back"
kubectl annotate deployment web on-call-
until_is "the label" "" kubectl get deployment web -o 'jsonpath={.metadata.labels.has-contact}'
until_is "attachments" 0 sh -c 'kubectl get configmaps -o name | grep -c web-contact || true'
until_is "finalizers" "" kubectl get deployment web -o 'jsonpath={.metadata.finalizers}'
finish

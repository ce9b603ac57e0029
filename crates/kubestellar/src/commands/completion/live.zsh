
# Names of policies and clusters, as the server knows them.
_kubestellar_live() {
    local names=
    case " ${(j: :)words[2,CURRENT-1]} " in
        *" get status "*) names=policies ;;
        *" cluster "(accept|label|props|detach)" "*) names=clusters ;;
    esac
    if [[ -n $names && $words[CURRENT] != -* ]]; then
        compadd -- ${(f)"$($words[1] complete $names 2>/dev/null)"}
    else
        _kubestellar "$@"
    fi
}

compdef _kubestellar_live kubestellar
# In a folder of $fpath, this file is what the first completion calls.
if [ "$funcstack[1]" = "_kubestellar" ]; then
    _kubestellar_live "$@"
fi


# Names of policies and clusters, as the server knows them.
_kubestellar_live() {
    _kubestellar "$@"
    local current="${COMP_WORDS[COMP_CWORD]}" names
    [[ $current == -* ]] && return
    case " ${COMP_WORDS[*]:1:COMP_CWORD-1} " in
        *" get status "*) names=policies ;;
        *" cluster accept "* | *" cluster label "* | *" cluster props "* | *" cluster detach "*) names=clusters ;;
        *) return ;;
    esac
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" complete "$names" 2>/dev/null)" -- "$current")
}
complete -F _kubestellar_live -o bashdefault -o default kubestellar

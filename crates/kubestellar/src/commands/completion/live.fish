
# Names of policies and clusters, as the server knows them.
complete -c kubestellar -n "__fish_seen_subcommand_from get; and __fish_seen_subcommand_from status" -f -a "(kubestellar complete policies 2>/dev/null)"
complete -c kubestellar -n "__fish_seen_subcommand_from cluster; and __fish_seen_subcommand_from accept label props detach" -f -a "(kubestellar complete clusters 2>/dev/null)"

{{/* Name of the image, with its tag or digest. */}}
{{- define "kube-proxy-ipvs.image" -}}
{{- $image := .Values.image -}}
{{- $suffix := ternary "-nftables" "" (eq .Values.rights "nftables") -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (print .Chart.AppVersion $suffix) }}
{{- end -}}
{{- end -}}

{{/* Files of the ConfigMap: the API server and the KubeProxyConfiguration. */}}
{{- define "kube-proxy-ipvs.files" -}}
{{- $server := required "set apiServer to the control plane's URL, such as https://10.0.0.10:6443" .Values.apiServer -}}
{{- $account := "/var/run/secrets/kubernetes.io/serviceaccount" -}}
{{- $cluster := dict "certificate-authority" (print $account "/ca.crt") "server" $server -}}
{{- $context := dict "cluster" "default" "namespace" "default" "user" "default" -}}
{{- $kubeconfig := dict "apiVersion" "v1" "kind" "Config" "current-context" "default"
      "clusters" (list (dict "name" "default" "cluster" $cluster))
      "contexts" (list (dict "name" "default" "context" $context))
      "users" (list (dict "name" "default" "user" (dict "tokenFile" (print $account "/token")))) -}}
{{- $config := .Files.Get "config.yaml" | fromYaml -}}
{{- $_ := set $config "mode" .Values.mode -}}
{{- $_ := set $config "clusterCIDR" .Values.clusterCIDR -}}
{{- $config = mergeOverwrite $config (deepCopy .Values.config) -}}
{{- dict "kubeconfig.conf" (toYaml $kubeconfig) "config.conf" (toYaml $config) | toYaml -}}
{{- end -}}

{{/* Flags that the init container and the daemon share. */}}
{{- define "kube-proxy-ipvs.flags" -}}
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
- --prepared-config=/run/kube-proxy/config.conf
{{- if has .Values.rights (list "nft" "legacy") }}
- --iptables-backend={{ .Values.rights }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Environment of each container. */}}
{{- define "kube-proxy-ipvs.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end -}}

{{/* Security context of the daemon and of the test. */}}
{{- define "kube-proxy-ipvs.securityContext" -}}
{{- if eq .Values.rights "privileged" -}}
privileged: true
{{- else -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
# As root, the daemon passes the bounding set below on to iptables. (Kubernetes has no ambient capabilities.)
runAsUser: 0
runAsGroup: 0
capabilities:
  drop: [ALL]
  add: {{ ternary (list "NET_ADMIN") (list "NET_ADMIN" "NET_RAW") (eq .Values.rights "nftables") | toJson }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- end -}}

{{/* Mounts of the daemon and of the test. */}}
{{- define "kube-proxy-ipvs.mounts" -}}
- name: kube-proxy
  mountPath: /var/lib/kube-proxy
{{- if ne .Values.rights "nftables" }}
- name: xtables-lock
  mountPath: /run/xtables.lock
{{- end }}
{{- if eq .Values.rights "privileged" }}
- name: lib-modules
  mountPath: /lib/modules
  readOnly: true
{{- end }}
- name: prepared
  mountPath: /run/kube-proxy
{{- end -}}

{{/* Volumes of the DaemonSet and of the test. */}}
{{- define "kube-proxy-ipvs.volumes" -}}
- name: kube-proxy
  configMap:
    name: {{ .Release.Name }}
{{- if ne .Values.rights "nftables" }}
- name: xtables-lock
  hostPath:
    path: /run/xtables.lock
    type: FileOrCreate
- name: lib-modules
  hostPath:
    path: /lib/modules
{{- end }}
- name: prepared
  emptyDir:
    sizeLimit: 1Mi
{{- end -}}

{{/* Nodes of the DaemonSet and of the test. */}}
{{- define "kube-proxy-ipvs.nodes" -}}
nodeSelector:
  {{- merge (dict "kubernetes.io/os" "linux") .Values.nodeSelector | toYaml | nindent 2 }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: kubernetes.io/arch
              operator: In
              values: {{ .Values.architectures | toJson }}
tolerations:
  - operator: Exists
{{- end -}}

{{- define "tokenweir.labels" -}}
app.kubernetes.io/name: tokenweir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The pods of one component: a list of the root and the component's name. Immutable in a workload: never change it. */}}
{{- define "tokenweir.selector" -}}
{app.kubernetes.io/instance: {{ (index . 0).Release.Name }}, app.kubernetes.io/component: {{ index . 1 }}}
{{- end }}

{{- define "tokenweir.port" -}}
{{ dig "listen" "port" 8080 .Values.config }}
{{- end }}

{{- define "tokenweir.workerPort" -}}
{{ dig "worker" "port" 8081 .Values.config }}
{{- end }}

{{- define "tokenweir.adminPort" -}}
{{ dig "admin" "port" 8090 .Values.config }}
{{- end }}

{{- /* What the paths of clients begin with; python -m tests.deploy.prefixes writes it, from the table of routes. */}}
{{- define "tokenweir.prefixes" -}}
agents|api|audio|batches|chat|completions|embeddings|files|fim|images|interactions|messages|model|models|moderations|ocr|openai|projects|publishers|realtime|rerank|responses|v1|v1beta|v1beta1|v2
{{- end }}

{{- define "tokenweir.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* What all pods have in common: a list of the root and the component's name. */}}
{{- define "tokenweir.pod" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $account := $root.Values.serviceAccount }}
{{- $made := and $account.create (not $account.name) | ternary $root.Release.Name $account.name }}
{{- /* The job runs before the chart's own account exists. */}}
{{- if and $made (not (and $account.create (eq $component "migrate"))) }}
serviceAccountName: {{ $made | quote }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" }}
{{- with index $root.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if has $component (list "proxy" "worker") }}
{{- with $root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "tokenweir.selector" (list $root $component) | fromYaml)) }}
  - {{- toYaml (hasKey . "labelSelector" | ternary . (merge $own .)) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Not empty if the proxies have the console: somebody can sign in. */}}
{{- define "tokenweir.console" -}}
{{- $admin := get .Values.config "admin" | default dict -}}
{{- if or .Values.admin.existingSecret $admin.operators $admin.oidc }}on{{ end }}
{{- end }}

{{- /* What all containers have in common: a list of the root and the component's own variables. */}}
{{- define "tokenweir.container" -}}
{{- $values := (index . 0).Values -}}
image: "{{ $values.image.repository }}:{{ $values.image.tag }}"
imagePullPolicy: {{ $values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ $values.existingSecret | quote }}}
  {{- with $values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with concat (index . 1) $values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* A variable with the value of the same name in a Secret: a list of its name and the Secret's. */}}
{{- define "tokenweir.secretEnv" -}}
name: {{ index . 0 }}
valueFrom: {secretKeyRef: {name: {{ index . 1 | quote }}, key: {{ index . 0 }}}}
{{- end }}

{{- /* The mounts of a container: a list of the root and the volume of /var/lib/tokenweir. */}}
{{- define "tokenweir.mounts" -}}
- {name: config, mountPath: /etc/tokenweir, readOnly: true}
- {name: {{ index . 1 }}, mountPath: /var/lib/tokenweir}
- {name: tmp, mountPath: /tmp}
{{- with (index . 0).Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Their volumes: a list of the root, the ConfigMap, its key, and the volume of /var/lib/tokenweir, unless a claim has it. */}}
{{- define "tokenweir.volumes" -}}
- {name: config, configMap: {name: {{ index . 1 }}, items: [{key: {{ index . 2 | quote }}, path: tokenweir.yaml}]}}
{{- range slice . 3 }}
- {name: {{ . }}, emptyDir: {}}
{{- end }}
- {name: tmp, emptyDir: {}}
{{- with (index . 0).Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

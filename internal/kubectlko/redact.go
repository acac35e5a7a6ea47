// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// redacted replaces a value that may be a secret.
const redacted = "<redacted>"

var (
	// secretWords match names of fields, annotations, flags and headers whose value may be a secret.
	secretWords = regexp.MustCompile(`(?i)passw|passphrase|secret|token|credential|authorization|(api|access|private|signing)[-_.]?key`)
	// placeWords match names of fields and flags whose value is the place of a secret.
	placeWords = regexp.MustCompile(`(?i)(name|namespace|file|path|dir|directory|mode|policy)s?$`)
	// userInfo matches user and password in a URL.
	userInfo = regexp.MustCompile(`://[^/\s@"']+@`)
)

// shownDomains are the domains of annotations whose values are the network's or Kubernetes' own. Other programs may keep secrets in theirs.
var shownDomains = []string{"kubeovn.io", "kubernetes.io", "k8s.io", "cncf.io"}

// redact replaces values that may be secrets: of environment variables, fields, flags and headers with such names, and of annotations
// of other programs. It also removes copies of the object in its own metadata.
func redact(o *unstructured.Unstructured) {
	unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
	redactMap(o.Object)
}

func mayBeSecret(name string) bool {
	return secretWords.MatchString(name) && !placeWords.MatchString(name)
}

func redactMap(fields map[string]any) {
	if name, is := fields["name"].(string); is && mayBeSecret(name) {
		if _, has := fields["value"]; has { // a header of a probe
			fields["value"] = redacted
		}
	}
	for name, value := range fields {
		switch value := value.(type) {
		case string:
			if fields[name] = redactText(value); value != "" && mayBeSecret(name) {
				fields[name] = redacted
			}
		case map[string]any:
			if name == "annotations" {
				redactAnnotations(value)
			}
			redactMap(value)
		case []any:
			switch name {
			case "env":
				redactEnvironment(value)
			case "args", "command":
				redactArguments(value)
			}
			redactList(value)
		}
	}
}

func redactList(values []any) {
	for i, value := range values {
		switch value := value.(type) {
		case string:
			values[i] = redactText(value)
		case map[string]any:
			redactMap(value)
		case []any:
			redactList(value)
		}
	}
}

func redactText(text string) string { return userInfo.ReplaceAllString(text, "://"+redacted+"@") }

func redactEnvironment(variables []any) {
	for _, v := range variables {
		if fields, is := v.(map[string]any); is && fields["value"] != nil {
			fields["value"] = redacted
		}
	}
}

// redactArguments replaces the values of flags: --password=VALUE, and --password VALUE.
func redactArguments(arguments []any) {
	next := false
	for i, a := range arguments {
		text, is := a.(string)
		if !is {
			continue
		}
		flag, _, joined := strings.Cut(text, "=")
		switch dashed := strings.HasPrefix(text, "-"); {
		case next && !dashed:
			arguments[i], next = redacted, false
		case strings.ContainsAny(flag, " \n"): // a script
			next = false
		case joined && mayBeSecret(flag):
			arguments[i], next = flag+"="+redacted, false
		default:
			next = dashed && mayBeSecret(flag)
		}
	}
}

func redactAnnotations(annotations map[string]any) {
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	for key := range annotations {
		domain, _, _ := strings.Cut(key, "/")
		if !shown(domain) || mayBeSecret(key) {
			annotations[key] = redacted
		}
	}
}

func shown(domain string) bool {
	for _, d := range shownDomains {
		if domain == d || strings.HasSuffix(domain, "."+d) {
			return true
		}
	}
	return false
}

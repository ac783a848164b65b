//go:build service

package forwardauth

import "testing"

func TestTraefik(t *testing.T) {
	p := start(t, "traefik", "make test-service installs it", "traefik.yml", "traefik-routes.yml")
	p.run(t, "traefik", "--configFile=traefik.yml")
	p.check(t, false)
}

func TestTraefikUnderAttack(t *testing.T) {
	p := start(t, "traefik", "make test-service installs it", "traefik.yml", "traefik-routes.yml")
	p.run(t, "traefik", "--configFile=traefik.yml")
	p.attack(t)
}

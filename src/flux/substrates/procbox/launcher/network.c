/* The sandbox's network: a loopback of its own, and a device that leads nowhere but to Flux. */
#include "launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* <linux/ipv6.h> and <net/route.h> do not go together. */
struct address_v6 {
    struct in6_addr address;
    uint32_t prefix;
    int index;
};

static void set_parameter(const char *path, const char *value)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return; /* a kernel without it does not do what it would switch off */
    ssize_t written = write(file, value, strlen(value));
    (void)written;
    close(file);
}

static int bring_up(int socket_descriptor, const char *device)
{
    struct ifreq request = {0};
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    /* To look costs nothing, while a change waits for every other change of the machine's network. */
    if (ioctl(socket_descriptor, SIOCGIFFLAGS, &request) == 0 && request.ifr_flags & IFF_UP)
        return 0;
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    return ioctl(socket_descriptor, SIOCSIFFLAGS, &request);
}

/* loopback GROUPS: low ports and ping are for everyone, since nobody here administers the network. */
void network_loopback(char **arguments)
{
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0 || bring_up(control, "lo") < 0)
        fail("bring the loopback up");
    close(control);
    set_parameter("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    set_parameter("/proc/sys/net/ipv4/ping_group_range", arguments[0]);
}

static int set_address_v4(int control, unsigned long command, struct ifreq *request, struct in_addr address)
{
    struct sockaddr_in *place = (struct sockaddr_in *)&request->ifr_addr;
    memset(place, 0, sizeof *place);
    place->sin_family = AF_INET;
    place->sin_addr = address;
    return ioctl(control, command, request);
}

static void configure_v4(const char *device, const char *address, const char *prefix, const char *mtu)
{
    struct ifreq request = {0};
    struct in_addr own, mask = {htonl(~0U << (32 - atoi(prefix)))};
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    request.ifr_mtu = atoi(mtu);
    if (control < 0 || !inet_aton(address, &own) || ioctl(control, SIOCSIFMTU, &request) < 0 ||
        set_address_v4(control, SIOCSIFADDR, &request, own) < 0 ||
        set_address_v4(control, SIOCSIFNETMASK, &request, mask) < 0 || bring_up(control, device) < 0)
        fail("configure %s", device);
    struct rtentry route = {.rt_flags = RTF_UP, .rt_dev = request.ifr_name};
    route.rt_dst.sa_family = route.rt_genmask.sa_family = AF_INET;
    if (ioctl(control, SIOCADDRT, &route) < 0)
        fail("route into %s", device);
    close(control);
}

/* A kernel without IPv6 needs none of it. */
static void configure_v6(const char *device, const char *address, const char *prefix)
{
    struct address_v6 own = {.prefix = (uint32_t)atoi(prefix), .index = (int)if_nametoindex(device)};
    struct in6_rtmsg route = {.rtmsg_metric = 1, .rtmsg_flags = RTF_UP, .rtmsg_ifindex = own.index};
    int control = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0)
        return;
    inet_pton(AF_INET6, address, &own.address);
    if (ioctl(control, SIOCSIFADDR, &own) == 0 && ioctl(control, SIOCADDRT, &route) < 0)
        fail("route IPv6 into %s", device);
    close(control);
}

/* sink DEVICE ADDRESS4 PREFIX4 ADDRESS6 PREFIX6 MTU; -1 if this machine has no TUN device for us. */
int network_sink(char **arguments)
{
    int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (device < 0)
        return -1;
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strncpy(request.ifr_name, arguments[0], IFNAMSIZ - 1);
    /* What the kernel itself would send out there is nobody's traffic. */
    set_parameter("/proc/sys/net/ipv6/conf/default/router_solicitations", "0");
    set_parameter("/proc/sys/net/ipv6/conf/default/accept_ra", "0");
    set_parameter("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1");
    set_parameter("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
    if (ioctl(device, TUNSETIFF, &request) < 0)
        fail("make the device %s", arguments[0]);
    configure_v4(arguments[0], arguments[1], arguments[2], arguments[5]);
    configure_v6(arguments[0], arguments[3], arguments[4]);
    return device;
}

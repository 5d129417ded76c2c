export const h: any, render: any, Fragment: any;
